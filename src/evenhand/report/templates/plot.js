  // The plot: two axes and series on a canvas. Every chart of every page is one.
  //
  // A spec is { x, y, series, bare }. An axis is { scale, low, high, label, whole }; the scale is "linear", "log" or
  // "share" (0 to 1, shown in per cent). Bounds that are missing come from the data. Without a y axis the series are
  // rows, one below the other, so that a cell of a table can hold a plot. `bare`: neither axes nor margins.
  // A series is { label, colour, x, y, low, high, mark, row, size, width, alpha, dash, samples }: a line with a band,
  // or marks ("dot", "disc", "ring", "cross"), whose low and high are whiskers along x. `samples`: what a pointer finds.
  const root = document.documentElement;
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const make = (tag, name, text) => {  // whatever comes from data is only ever set as text
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const say = (element, attributes) => {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  };
  const FLOOR = 1e-3;  // smaller losses are drawn like this one: the sample is learned
  const ROW = 12;  // pixels between two rows of marks
  const isNumber = value => typeof value === "number" && Number.isFinite(value);
  const colourOf = name => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  const written = (value, { scale }) => {
    if (!isNumber(value)) return "";
    if (scale === "share") return `${Number((100 * value).toFixed(1))}%`;
    return scale === "log" && value <= FLOOR ? `≤${FLOOR}` : String(Number(value.toPrecision(3)));
  };
  const bounded = (axis, values) => {
    let { low, high } = axis;
    if (low === undefined || high === undefined) {
      let least = Infinity, most = -Infinity;
      for (const value of values()) if (isNumber(value)) { least = Math.min(least, value); most = Math.max(most, value); }
      if (least > most) [least, most] = [1, 1];
      if (axis.scale === "share") [least, most] = [Math.floor(10 * Math.min(least, 0.9)) / 10, 1];
      if (axis.scale === "log") {
        least = 10 ** Math.floor(Math.log10(Math.max(least, FLOOR)) + 1e-9);
        most = Math.max(most, 10 * least);
      }
      low ??= least;
      high ??= most;
    }
    return { ...axis, low, high };
  };
  const ticksOf = ({ scale, low, high, whole }, most) => {
    const found = [];
    if (scale === "log") {
      const step = Math.max(1, Math.ceil(Math.log10(high / low) / most));
      for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power += step) found.push(10 ** power);
      return found;
    }
    const rough = Math.max((high - low) / most, whole ? 1 : 1e-9), power = 10 ** Math.floor(Math.log10(rough));
    const step = (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map(factor => factor * power).find(each => each >= rough * 0.999);
    for (let tick = Math.ceil(low / step - 1e-6) * step; tick <= high + 1e-6 * step; tick += step) found.push(Number(tick.toPrecision(9)));
    return found;
  };
  const placed = ({ scale, low, high }, from, to) => {
    const warp = scale === "log" ? value => Math.log(Math.max(value, low)) : value => value;
    const begin = warp(low), span = warp(high) - begin;
    return value => from + (to - from) * (span > 0 ? (warp(value) - begin) / span : 0.5);
  };

  const plots = [];
  class Plot {
    constructor(box, spec) {
      Object.assign(this, { box, spec, marked: [] });
      this.canvases = ["base", "over"].map(name => box.appendChild(make("canvas", name)));
      plots.push(this);
      new ResizeObserver(() => this.draw()).observe(box);
    }

    show(spec) {
      this.spec = spec;
      this.draw();
    }

    // Draw these series over the others, and nothing that was drawn so before.
    mark(series) {
      this.marked = series;
      if (this.x) this.drawMarked();
    }

    context(canvas) {
      const { width, height } = this.box.getBoundingClientRect(), scale = devicePixelRatio || 1;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      const context = canvas.getContext("2d");
      context.scale(scale, scale);
      context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
      context.lineJoin = context.lineCap = "round";
      return context;
    }

    draw() {
      const { width, height } = this.box.getBoundingClientRect(), { spec } = this;
      if (!width || !height || !spec) return;
      const rows = !spec.y, series = spec.series;
      const margin = spec.bare ? { left: 1, right: 1, top: 2, bottom: 2 }
        : rows ? { left: 18, right: 18, top: 0, bottom: 0 } : { left: 50, right: 14, top: 10, bottom: spec.x.label ? 36 : 24 };
      const values = name => function* () {
        for (const each of series) for (const key of name) yield* each[key] ?? [];
      };
      const [xAxis, yAxis] = [bounded(spec.x, values(["x"])), rows ? null : bounded(spec.y, values(["y", "low", "high"]))];
      this.x = placed(xAxis, margin.left, width - margin.right);
      this.y = rows ? row => ROW * (row + 1) : placed(yAxis, height - margin.bottom, margin.top);
      const context = this.context(this.canvases[0]);
      if (!spec.bare) this.drawAxes(context, xAxis, yAxis, width, height, margin);
      series.forEach((each, index) => this.paint(context, each, index));
      this.drawMarked();
    }

    drawAxes(context, xAxis, yAxis, width, height, margin) {
      const line = (...ends) => {
        context.beginPath();
        context.moveTo(ends[0], ends[1]);
        context.lineTo(ends[2], ends[3]);
        context.stroke();
      };
      Object.assign(context, { strokeStyle: colourOf("rule"), fillStyle: colourOf("soft"), lineWidth: 1, textBaseline: "middle" });
      const bottom = height - margin.bottom, titled = !yAxis && !this.spec.series.length;  // a row of labels alone
      for (const tick of ticksOf(xAxis, yAxis ? Math.max(2, (width - 64) / 70) : 4)) {
        const x = Math.round(this.x(tick)) + 0.5;
        if (!titled && (!yAxis || xAxis.scale === "log")) line(x, margin.top, x, bottom);
        context.textAlign = "center";
        if (yAxis || titled) context.fillText(written(tick, xAxis), x, yAxis ? bottom + 13 : height / 2);
      }
      for (const tick of yAxis ? ticksOf(yAxis, Math.max(2, height / 45)) : []) {
        const y = Math.round(this.y(tick)) + 0.5;
        line(margin.left, y, width - margin.right, y);
        context.textAlign = "right";
        context.fillText(written(tick, yAxis), margin.left - 8, y);
      }
      if (yAxis && xAxis.label) context.fillText(xAxis.label, width - margin.right, height - 7);
      context.textAlign = "left";
      if (yAxis?.label) context.fillText(yAxis.label, margin.left + 12, margin.top + 10);
    }

    drawMarked() {
      const context = this.context(this.canvases[1]);
      this.marked.forEach(each => this.paint(context, each, 0));
    }

    paint(context, series, index) {
      const { x, y, low, high, mark, width = 2, alpha = 1, halo } = series, row = series.row ?? index;
      const colour = colourOf(series.colour);
      if (halo) this.paint(context, { ...series, colour: "paper", width: width + 3.5, halo: false }, index);
      Object.assign(context, { strokeStyle: colour, fillStyle: colour, lineWidth: width, globalAlpha: alpha });
      context.setLineDash(series.dash ?? []);
      const ends = x.length === 1 && !mark ? [this.x(x[0]) - 40, this.x(x[0]) + 40] : null;  // a point alone is not seen
      const across = i => this.x(x[i]);
      if (mark) return this.paintMarks(context, series, row, across);
      if (low) {
        const kept = [...x.keys()].filter(i => isNumber(low[i]) && isNumber(high[i]));
        context.globalAlpha = 0.16 * alpha;
        context.beginPath();
        for (const i of kept) for (const at of ends ?? [across(i)]) context.lineTo(at, this.y(high[i]));
        for (const i of kept.reverse()) for (const at of (ends ?? [across(i)]).slice().reverse()) context.lineTo(at, this.y(low[i]));
        context.fill();
        context.globalAlpha = alpha;
      }
      context.beginPath();
      let down = false;
      for (let i = 0; i < x.length; i++) {
        if (!isNumber(y[i])) { if (!series.joined) down = false; continue; }
        for (const at of ends ?? [across(i)]) {
          if (down) context.lineTo(at, this.y(y[i])); else context.moveTo(at, this.y(y[i]));
          down = true;
        }
      }
      context.stroke();
    }

    paintMarks(context, { x, y, low, high, mark, size = 4.5, alpha = 1 }, row, across) {
      for (let i = 0; i < x.length; i++) {
        const at = across(i), level = y ? this.y(y[i]) : this.y(row);
        context.beginPath();
        if (low) {
          context.globalAlpha = 0.45 * alpha;
          context.moveTo(this.x(low[i]), level);
          context.lineTo(this.x(high[i]), level);
          context.stroke();
          context.globalAlpha = alpha;
          context.beginPath();
        }
        if (mark === "cross") {
          for (const turn of [-1, 1]) { context.moveTo(at - 3, level - 3 * turn); context.lineTo(at + 3, level + 3 * turn); }
          context.stroke();
        } else if (size < 2) context.fillRect(at - size, level - size, 2 * size, 2 * size);  // quicker, for very many
        else {
          context.arc(at, level, size, 0, 7);
          if (mark === "disc") Object.assign(context, { fillStyle: colourOf("paper") });
          if (mark !== "ring") context.fill();
          if (mark !== "dot") context.stroke();
        }
      }
    }

    // The sample at a point of the plot, or null.
    at(px, py) {
      let best = null, nearest = 14;
      const closer = (distance, sample) => { if (distance < nearest) [nearest, best] = [distance, sample]; };
      for (const { x, y, mark, samples } of this.spec.series) {
        if (!samples) continue;
        for (let i = 0; i < x.length; i++) {
          if (mark) { closer(Math.hypot(this.x(x[i]) - px, this.y(y[i]) - py), samples[i]); continue; }
          const next = Math.min(i + 1, x.length - 1), left = this.x(x[i]), right = this.x(x[next]);
          if (!isNumber(y[i]) || !isNumber(y[next]) || (x.length > 1 && (px < left - 1 || px > right + 1))) continue;
          const part = right > left ? Math.min(1, Math.max(0, (px - left) / (right - left))) : 0;
          closer(Math.abs(this.y(y[i]) + part * (this.y(y[next]) - this.y(y[i])) - py), samples[0]);
        }
      }
      return best;
    }
  }

  // A chart of lines with a legend, which a pointer or the arrow keys read out.
  const charts = new Map();
  for (const figure of all("[data-plot]")) {
    const spec = JSON.parse(figure.dataset.plot), box = figure.appendChild(make("div", "plot"));
    const plot = new Plot(box, spec), { x, y, series } = spec;
    charts.set(figure, plot);
    if (!y) box.style.height = `${ROW * (series.length ? 1 + Math.max(...series.map((each, i) => (each.row ?? i) + 1)) : 1.4)}px`;
    if (!y || spec.bare) { say(box, { "aria-hidden": "true" }); continue; }  // what it shows is beside it in numbers
    const legend = make("ul", "legend"), read = make("li", "read"), outputs = series.map(each => {
      const item = legend.appendChild(make("li")), swatch = item.appendChild(make("span", "swatch"));
      swatch.style.background = `var(--${each.colour})`;
      item.append(`${each.label} `);
      return item.appendChild(make("output"));
    });
    legend.append(read);
    say(read, { "aria-live": "polite" });
    box.before(legend);
    const points = series[0].x, first = values => values.find(isNumber), told = series.filter(each => first(each.y) !== undefined).map(each =>
      `${each.label}: from ${written(first(each.y), y)} to ${written(first([...each.y].reverse()), y)}`);
    say(box, { tabindex: 0, role: "img", "aria-label": `${spec.title}, epochs ${points[0]} to ${points.at(-1)}. ${told.join("; ")}.` });
    let current = null, kept = [];
    plot.trace = traced => { kept = traced; plot.mark(traced); };
    const show = position => {
      current = position;
      read.textContent = position === null ? "" : `${x.label} ${points[position]}`;
      outputs.forEach((output, i) => { output.textContent = position === null ? "" : written(series[i].y[position], y); });
      const here = ({ colour, y: values }) => ({ colour, x: [points[position]], y: [values[position]], mark: "dot", size: 4 });
      plot.mark([...kept, ...(position === null ? [] : series.map(here).filter(each => isNumber(each.y[0])))]);
    };
    box.addEventListener("pointermove", event => {
      const wanted = event.clientX - box.getBoundingClientRect().left, far = i => Math.abs(plot.x(points[i]) - wanted);
      show(points.reduce((best, _, i) => far(i) < far(best) ? i : best, 0));
    });
    for (const leaving of ["pointerleave", "blur"]) box.addEventListener(leaving, () => show(null));
    box.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], last = points.length - 1;
      if (!step) return;
      event.preventDefault();
      show(current === null ? (step > 0 ? 0 : last) : Math.min(last, Math.max(0, current + step)));
    });
  }
