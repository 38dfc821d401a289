  // Plots: a base that is drawn when the filters change, and an overlay for what is pointed at and chosen.
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(["paper", "ink", "soft", "rule", "majority", "minority", "third"].map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
  };
  let colour = colours();
  const prepared = canvas => {
    const box = canvas.parentElement.getBoundingClientRect(), scale = devicePixelRatio || 1;
    canvas.width = Math.round(box.width * scale);
    canvas.height = Math.round(box.height * scale);
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    return [context, box.width, box.height];
  };
  const decades = () => {
    const found = [];
    for (let value = data.floor; value <= data.high * 1.0001; value *= 10) found.push(Number(value.toPrecision(1)));
    return found;
  };
  const codeOf = value => 254 * Math.log(value / data.floor) / Math.log(data.high / data.floor);
  const tickText = value => value === data.floor ? `≤${value}` : String(value);
  const AREA = { left: 52, right: 14, top: 10, bottom: 34 };
  const scales = (w, h) => ({
    x: share => AREA.left + share * (w - AREA.left - AREA.right),
    y: code => h - AREA.bottom - code / 254 * (h - AREA.top - AREA.bottom),
  });
  const epochShare = e => width > 1 ? (data.epochs[e] - data.epochs[0]) / (data.epochs[width - 1] - data.epochs[0]) : 0.5;
  const lossAxis = (context, w, h, { x, y }) => {
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of decades()) {
      const level = Math.round(y(codeOf(value))) + 0.5;
      context.strokeStyle = colour.rule;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x(0), level);
      context.lineTo(x(1), level);
      context.stroke();
      context.fillStyle = colour.soft;
      context.fillText(tickText(value), x(0) - 8, level);
    }
  };
  const pathOf = (context, { x, y }, codes) => {
    context.beginPath();
    let down = false;
    for (let e = 0; e < width; e++) {
      const code = codes(e);
      if (code === MISSING) { down = false; continue; }
      if (width === 1) { context.moveTo(x(0.4), y(code)); context.lineTo(x(0.6), y(code)); }
      else if (down) context.lineTo(x(epochShare(e)), y(code));
      else context.moveTo(x(epochShare(e)), y(code));
      down = true;
    }
    context.stroke();
  };
  const own = i => e => curves[i * width + e];

  // 10%, 50% and 90% of the losses at every epoch, by counting codes; null where there are no samples.
  const quantiles = members => {
    if (!members.length) return null;
    const SHARES = [0.1, 0.5, 0.9], found = SHARES.map(() => new Uint8Array(width));
    const counts = new Uint32Array(256 * width);
    for (const i of members) {
      for (let e = 0, at = i * width; e < width; e++, at++) counts[256 * e + curves[at]]++;
    }
    for (let e = 0; e < width; e++) {
      const total = members.length - counts[256 * e + MISSING];
      SHARES.forEach((share, q) => {
        let below = 0, code = 0;
        while (code < 254 && below + counts[256 * e + code] <= share * (total - 1)) below += counts[256 * e + code++];
        found[q][e] = total ? code : MISSING;
      });
    }
    return found;
  };
  const parts = shown => [0, 1].map(part => shown.filter(i => isMinority(i) === part));
  const MOST_LINES = 70;  // single samples drawn per part
  const some = members => {
    const count = Math.min(MOST_LINES, members.length);
    return Array.from({ length: count }, (_, k) => members[Math.floor((k + 0.5) * members.length / count)]);
  };

  const drawBands = (context, scale, bands, thin) => [0, 1].forEach(part => {
    if (!bands[part]) return;
    const [low, middle, high] = bands[part];
    context.fillStyle = context.strokeStyle = part ? colour.minority : colour.majority;
    context.globalAlpha = thin ? 0.2 : 0.16;
    context.beginPath();
    const edge = (codes, e) => width === 1 ? [[0.3, codes[0]], [0.7, codes[0]]] : [[epochShare(e), codes[e]]];
    const present = [...middle.keys()].filter(e => middle[e] !== MISSING);
    const outline = [...present.flatMap(e => edge(high, e)), ...present.reverse().flatMap(e => edge(low, e).reverse())];
    outline.forEach(([share, code]) => context.lineTo(scale.x(share), scale.y(code)));
    context.fill();
    context.globalAlpha = 1;
    context.lineWidth = thin ? 1.5 : 2.5;
    pathOf(context, scale, e => middle[e]);
  });

  const curvesPlot = {
    box: find("#curves-plot"), lines: [],
    draw(shown) {
      const [context, w, h] = prepared(find(".base", this.box)), scale = scales(w, h);
      this.scale = scale;
      lossAxis(context, w, h, scale);
      context.textAlign = "center";
      const step = Math.max(1, Math.ceil((width - 1) / Math.max(1, Math.floor(w / 50))));
      for (let e = 0; e < width; e += step) context.fillText(data.epochs[e], scale.x(epochShare(e)), h - AREA.bottom + 14);
      context.textAlign = "right";
      context.fillText("epoch", scale.x(1), h - 6);
      const split = parts(shown);
      this.lines = split.flatMap(some);
      context.lineJoin = "round";
      context.globalAlpha = 0.3;
      context.lineWidth = 1;
      for (const i of this.lines) {
        context.strokeStyle = isMinority(i) ? colour.minority : colour.majority;
        pathOf(context, scale, own(i));
      }
      context.globalAlpha = 1;
      const bands = split.map(quantiles);
      drawBands(context, scale, bands, false);
      const told = bands.map((band, part) => band && `Median loss of the ${["majority", "minority"][part]}: ${lossText(band[1][0])} at first, ${lossText(band[1][width - 1])} at last.`).filter(Boolean).join(" ");
      find("#curves-told").textContent = told;
      find(".base", this.box).setAttribute("aria-label", `Loss histories. ${told} Every sample is in the list below.`);
    },
    at(px, py) {
      let best = null, nearest = 14;
      for (const i of this.lines) {
        for (let e = 0; e < width; e++) {
          const next = Math.min(e + 1, width - 1), a = curves[i * width + e], b = curves[i * width + next];
          if (a === MISSING || b === MISSING) continue;
          const left = this.scale.x(epochShare(e)), right = this.scale.x(epochShare(next));
          if (width > 1 && (px < left - 1 || px > right + 1)) continue;
          const t = right > left ? Math.min(1, Math.max(0, (px - left) / (right - left))) : 0;
          const distance = Math.abs(this.scale.y(a + t * (b - a)) - py);
          if (distance < nearest) { nearest = distance; best = i; }
        }
      }
      return best;
    },
    highlight(context, i, strong) {
      context.strokeStyle = colour.paper;
      context.lineWidth = strong ? 6 : 5;
      pathOf(context, this.scale, own(i));
      context.strokeStyle = strong ? colour.ink : isMinority(i) ? colour.minority : colour.majority;
      context.lineWidth = strong ? 2.5 : 2;
      pathOf(context, this.scale, own(i));
    },
  };

  const mapPlot = {
    box: find("#map-plot"), shown: new Uint32Array(0),
    draw(shown) {
      const [context, w, h] = prepared(find(".base", this.box)), scale = scales(w, h);
      const across = code => scale.x(0.015 + 0.97 * code / 254);
      this.scale = { x: across, y: scale.y };
      this.shown = shown;
      lossAxis(context, w, h, scale);
      context.textAlign = "center";
      for (const value of decades()) {
        const at = Math.round(across(codeOf(value))) + 0.5;
        context.beginPath();
        context.moveTo(at, scale.y(254));
        context.lineTo(at, scale.y(0));
        context.stroke();
        context.fillText(tickText(value), at, h - AREA.bottom + 14);
      }
      context.textAlign = "right";
      context.fillText("geometric mean loss, first half of training →", scale.x(1), h - 6);
      context.textAlign = "left";
      context.fillText("↑ second half", scale.x(0) + 14, scale.y(254) + 8);
      const kinds = [[], [], []];
      for (const i of shown) kinds[triage(i) === 2 ? 2 : isMinority(i)].push(i);
      kinds.forEach((members, kind) => {  // the few over the many
        context.fillStyle = context.strokeStyle = [colour.majority, colour.minority, colour.third][kind];
        context.globalAlpha = shown.length > 5000 ? 0.4 : 0.7;
        const side = kind ? 3.5 : shown.length > 5000 ? 2 : 3;
        const drawn = new Uint8Array(Math.ceil(w) * Math.ceil(h));  // a fifth dot on a pixel would not be seen
        context.lineWidth = 1.5;
        context.beginPath();
        for (const i of members) {
          const x = across(early[i]), y = scale.y(late[i]), pixel = Math.floor(y) * Math.ceil(w) + Math.floor(x);
          if (drawn[pixel]++ > 3) { drawn[pixel] = 4; continue; }
          if (kind < 2) context.fillRect(x - side / 2, y - side / 2, side, side);
          else { context.moveTo(x - 3, y - 3); context.lineTo(x + 3, y + 3); context.moveTo(x + 3, y - 3); context.lineTo(x - 3, y + 3); }
        }
        if (kind === 2) context.stroke();
      });
      context.globalAlpha = 1;
    },
    at(px, py) {
      let best = null, nearest = 14 ** 2;
      for (const i of this.shown) {
        const distance = (this.scale.x(early[i]) - px) ** 2 + (this.scale.y(late[i]) - py) ** 2;
        if (distance < nearest) { nearest = distance; best = i; }
      }
      return best;
    },
    highlight(context, i, strong) {
      context.beginPath();
      context.arc(this.scale.x(early[i]), this.scale.y(late[i]), strong ? 7 : 6, 0, 7);
      context.strokeStyle = colour.paper;
      context.lineWidth = 5;
      context.stroke();
      context.strokeStyle = colour.ink;
      context.lineWidth = strong ? 2.5 : 1.5;
      context.stroke();
    },
  };

  // The chosen sample's own curve, over the bands of its whole class.
  const classBands = new Map();
  const drawOwn = i => {
    const canvas = find("#own-plot .base"), label = labels[i];
    if (!classBands.has(label)) {
      const members = Uint32Array.from({ length: size }, (_, k) => k).filter(k => labels[k] === label);
      classBands.set(label, parts(members).map(quantiles));
    }
    const [context, w, h] = prepared(canvas), scale = scales(w, h);
    lossAxis(context, w, h, scale);
    context.textAlign = "center";
    for (const e of new Set([0, width - 1])) context.fillText(data.epochs[e], scale.x(epochShare(e)), h - AREA.bottom + 14);
    context.fillText("epoch", scale.x(0.5), h - AREA.bottom + 14);
    drawBands(context, scale, classBands.get(label), true);
    context.strokeStyle = colour.ink;
    context.lineWidth = 2.5;
    pathOf(context, scale, own(i));
    canvas.setAttribute("aria-label", `Loss of the chosen sample by epoch: ${Array.from({ length: width }, (_, e) => lossText(own(i)(e))).join(", ").slice(0, 600)}`);
  };
