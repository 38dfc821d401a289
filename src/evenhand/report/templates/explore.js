  // The samples of an audit: columns as typed arrays, decoded once.
  const data = JSON.parse(find("#data").textContent);
  const size = data.ids.length, width = data.epochs.length, MISSING = 255;
  const decode = name => {
    const element = document.getElementById(`block-${name}`);
    if (!element) return null;
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(element.textContent);
    return Uint8Array.from(atob(element.textContent), character => character.charCodeAt(0));
  };
  const integers = name => {
    const bytes = decode(name);
    return bytes && new ({ 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[bytes.length / size])(bytes.buffer);
  };
  const curves = decode("curves");  // (samples, epochs): codes 0 to 254 on a logarithmic scale, 255 is missing
  const positions = integers("positions"), labels = integers("labels"), flags = integers("flags");
  const margin = new Float32Array(decode("margin").buffer);
  const models = [integers("baseline"), integers("balanced")];
  const shared = decode("shared"), ids = new Array(size);  // every id has its first letters from the one before it
  for (let i = 0; i < size; i++) ids[i] = shared[i] ? ids[i - 1].slice(0, shared[i]) + data.ids[i] : data.ids[i];
  const isMinority = i => flags[i] & 1, triage = i => flags[i] >> 1, className = position => data.classes[position];
  const TRIAGE = ["", "likely minority", "likely mislabeled"];
  const LOSSES = Float64Array.from({ length: 256 }, (_, code) => code === MISSING ? NaN : FLOOR * (data.high / FLOOR) ** (code / 254));
  const lossAt = (i, e) => LOSSES[curves[i * width + e]];
  const lossText = loss => Number.isNaN(loss) ? "not recorded" : loss <= FLOOR ? `at most ${FLOOR}` : loss.toPrecision(2);
  const history = i => Array.from({ length: width }, (_, e) => lossAt(i, e));
  // Geometric mean losses of the first and second half of training.
  const early = new Float32Array(size), late = new Float32Array(size), half = Math.max(1, width >> 1);
  const meanOver = (i, begin, end) => {
    let sum = 0, count = 0;
    for (let at = i * width + begin; at < i * width + end; at++) if (curves[at] !== MISSING) { sum += curves[at]; count++; }
    return FLOOR * (data.high / FLOOR) ** (count ? sum / count / 254 : 0);
  };
  for (let i = 0; i < size; i++) {
    early[i] = meanOver(i, 0, half);
    late[i] = width > 1 ? meanOver(i, half, width) : early[i];
  }

  // What can be seen of a sample.
  const pictureOf = new Map((data.pictures || []).map((owner, i) => [owner, i]));
  let pictures = null;
  const picture = i => {
    if (!pictureOf.has(i)) return null;
    pictures ??= JSON.parse(find("#pictures").textContent);
    const image = Object.assign(make("img"), { src: `data:image/${pictures[pictureOf.get(i)]}`, alt: "", decoding: "async" });
    image.addEventListener("load", () => image.classList.toggle("pixelated", image.naturalWidth <= 32), { once: true });
    return image;
  };
  const columns = (data.columns || []).map(({ name, block, texts }) => {
    const values = texts ? integers(block) : new Float32Array(decode(block).buffer);
    const text = i => texts ? texts[values[i]] : Number.isNaN(values[i]) ? "" : String(Number(values[i].toPrecision(6)));
    return { name, texts, values, text };  // texts are sorted, so their codes sort like them
  });
  // What a screen reader says of a sample; `whole` adds what others see of it.
  const describe = (i, whole) => [
    ids[i], `class ${className(labels[i])}`, isMinority(i) ? "minority" : "majority", TRIAGE[triage(i)],
    ...models.map((predicted, m) => predicted && predicted[i] !== labels[i] ? `${data.models[m]} model says ${className(predicted[i])}` : ""),
    ...(whole && data.texts ? [data.texts[i].slice(0, 160)] : []),
    ...(whole ? columns.slice(0, 12).map(column => `${column.name} ${column.text(i) || "missing"}`) : []),
    marks.has(i) ? "marked" : "",
  ].filter(Boolean).join(", ");

  // Marks outlive a reload; only positions are kept.
  const DRAWER = `evenhand-marks ${data.title} ${size} ${ids[0]} ${ids[size - 1]}`;
  const marks = new Set(JSON.parse(stored(DRAWER) || "[]").filter(i => i in ids));

  // A cell of a CSV file: quoted where needed, and never a formula, which a spreadsheet would run.
  const cell = value => {
    let text = String(value);
    if (typeof value === "string" && /^\s*[=+\-@|%＝＋－＠]|^[\t\r\n]/.test(text)) text = `'${text}`;
    return /[",\r\n']/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = chosen => {
    const predictedBy = ["baseline", "balanced"].map((name, m) => [`predicted_${name}`, models[m]]).filter(([, predicted]) => predicted);
    const header = ["position", "id", "class", "pseudo_group", "triage", "margin", "last_loss", ...predictedBy.map(([name]) => name)];
    const rows = chosen.map(i => {
      const last = lossAt(i, width - 1);
      return [
        positions[i], ids[i], className(labels[i]), isMinority(i) ? "minority" : "majority", TRIAGE[triage(i)].replace("likely ", ""),
        Number(margin[i].toFixed(4)), Number.isNaN(last) ? "" : Number(last.toPrecision(3)),
        ...predictedBy.map(([, predicted]) => className(predicted[i])),
      ];
    });
    return [header, ...rows].map(row => row.map(cell).join(",") + "\r\n").join("");
  };

  // Orders: computed once each, when first asked for.
  const ORDERS = {
    clearest: ["clearest minority", i => (triage(i) === 1 ? 0 : triage(i) === 2 ? 2000 : isMinority(i) ? 1000 : 3000) - margin[i]],
    boundary: ["nearest to the boundary", i => Math.abs(margin[i])],
    typical: ["most typical", i => margin[i]],
    late: ["late loss, highest first", i => -late[i]],
    early: ["early loss, highest first", i => -early[i]],
    id: ["id", null],
    position: ["order in the data", i => i],
  };
  columns.forEach((column, c) => { ORDERS[`column${c}`] = [column.name, i => column.values[i]]; });
  const orders = new Map();
  const ordered = name => {
    if (!orders.has(name)) {
      const order = Uint32Array.from({ length: size }, (_, i) => i), rank = ORDERS[name][1];
      const keys = rank ? Float64Array.from(order, rank).map(key => Number.isNaN(key) ? Infinity : key)
        : ids.map(id => id.replace(/\d+/g, digits => digits.padStart(15, "0")));  // 9 before 10
      orders.set(name, order.sort((a, b) => keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
    }
    return orders.get(name);
  };
  let lowered = null;
  const matches = wanted => {
    lowered ??= ids.map((id, i) => `${id}\n${data.texts ? data.texts[i] : ""}`.toLowerCase());
    return i => lowered[i].includes(wanted);
  };

  // The plots: loss histories of the samples that are shown, each of them as a point, and the chosen one's own.
  const PARTS = ["majority", "minority"], EPOCHS = { scale: "linear", whole: true, label: "epoch" };
  const LOSS = { scale: "log", low: FLOOR, high: data.high };
  const curvesPlot = new Plot(find("#curves-plot")), mapPlot = new Plot(find("#map-plot")), ownPlot = new Plot(find("#own-plot"));
  // 10%, 50% and 90% of the losses at every epoch, by counting codes; null where there are no samples.
  const quantiles = members => {
    if (!members.length) return null;
    const counts = new Uint32Array(256 * width);
    for (const i of members) for (let e = 0, at = i * width; e < width; e++, at++) counts[256 * e + curves[at]]++;
    return [0.1, 0.5, 0.9].map(share => Array.from({ length: width }, (_, e) => {
      const total = members.length - counts[256 * e + MISSING];
      let below = 0, code = 0;
      while (code < 254 && below + counts[256 * e + code] <= share * (total - 1)) below += counts[256 * e + code++];
      return total ? LOSSES[code] : NaN;
    }));
  };
  const split = samples => [0, 1].map(part => samples.filter(i => isMinority(i) === part));
  const bands = (parts, width_) => parts.map(quantiles).flatMap((band, part) =>
    band ? [{ colour: PARTS[part], x: data.epochs, low: band[0], y: band[1], high: band[2], width: width_ }] : []);
  const MOST_LINES = 70;  // single samples drawn per part
  const some = members => Array.from({ length: Math.min(MOST_LINES, members.length) }, (_, k) =>
    members[Math.floor((k + 0.5) * members.length / Math.min(MOST_LINES, members.length))]);
  const lineOf = i => ({ x: data.epochs, y: history(i), samples: [i], colour: PARTS[isMinority(i)], width: 1, alpha: 0.3 });
  const drawPlots = () => {
    const parts = split(shown), middle = bands(parts, 2.5);
    curvesPlot.show({ x: EPOCHS, y: LOSS, series: [...parts.flatMap(some).map(lineOf), ...middle] });
    const said = middle.map(({ colour, y }) => `Median loss of the ${colour}: ${lossText(y[0])} at first, ${lossText(y.at(-1))} at last.`).join(" ");
    find("#curves-told").textContent = said;
    say(curvesPlot.canvases[0], { role: "img", "aria-label": `Loss histories. ${said} Every sample is in the list below.` });
    const many = shown.length > 5000, kinds = [[], [], []];
    for (const i of shown) kinds[triage(i) === 2 ? 2 : isMinority(i)].push(i);
    const axis = { ...LOSS, low: FLOOR * 0.8 };
    mapPlot.show({
      x: { ...axis, label: "geometric mean loss, first half of training →" }, y: { ...axis, label: "↑ second half" },
      series: kinds.map((samples, kind) => ({  // the few over the many
        samples, x: samples.map(i => early[i]), y: samples.map(i => late[i]), colour: [...PARTS, "wrong"][kind],
        mark: kind === 2 ? "cross" : "dot", size: kind || !many ? 1.75 : 1, width: 1.5, alpha: many ? 0.4 : 0.7,
      })),
    });
    say(mapPlot.canvases[0], { role: "img", "aria-label": "Every sample by its loss early and late in training" });
  };
  const overlay = pointed => {
    const both = [...new Set([chosen, pointed])].filter(i => i !== null);
    curvesPlot.mark(both.map(i => ({ ...lineOf(i), colour: i === chosen ? "ink" : PARTS[isMinority(i)], width: 2.5, alpha: 1, halo: true })));
    mapPlot.mark(both.map(i => ({ x: [early[i]], y: [late[i]], mark: "ring", size: 6.5, width: i === chosen ? 2.5 : 1.5, colour: "ink", halo: true })));
  };
  const classBands = new Map();
  const drawOwn = i => {  // over the bands of its whole class
    const label = labels[i];
    if (!classBands.has(label)) classBands.set(label, bands(split(ordered("position").filter(k => labels[k] === label)), 1.5));
    ownPlot.show({ x: EPOCHS, y: LOSS, series: [...classBands.get(label), { x: data.epochs, y: history(i), colour: "ink", width: 2.5 }] });
    const told = history(i).map(lossText).join(", ").slice(0, 600);
    say(ownPlot.canvases[0], { role: "img", "aria-label": `Loss of the chosen sample by epoch: ${told}` });
  };

  // The list: as many samples as anyone likes, of which only those in view are in the document.
  const list = find("#list"), sheet = find(".sheet", list), detail = find("#detail");
  const layout = {
    pictures: { least: 116, gap: 12, height: 172 },
    texts: { least: Infinity, gap: 0, height: 96 },
    rows: { least: Infinity, gap: 0, height: 44 },
  }[data.kind];
  let shown = new Uint32Array(0);  // samples that pass the filters, in order
  let active = 0;                  // place in `shown` that the keyboard is at
  let chosen = null;               // the sample in the detail panel
  let grid = { columns: 1, span: 0, head: 0 };
  const drawn = new Map();         // place -> element
  list.classList.add(data.kind);

  const badges = (i, short) => {
    if (!triage(i)) return [];
    const badge = make("span", triage(i) === 1 ? "badge late" : "badge wrong", short ? ["", "late", "label?"][triage(i)] : TRIAGE[triage(i)]);
    badge.title = TRIAGE[triage(i)];
    return [badge];
  };
  // "cat → dog": what the newest model says where it errs.
  const saying = i => {
    const line = make("span", "saying"), predicted = models[1] || models[0];
    line.append(make("bdi", "", className(labels[i])));
    if (predicted && predicted[i] !== labels[i]) line.append(make("span", "err", " → "), make("bdi", "err", className(predicted[i])));
    return line;
  };
  const headed = (...parts) => {
    const head = make("span", "head");
    head.append(...parts);
    return head;
  };
  const build = (i, place) => {
    const option = make("div", `item ${PARTS[isMinority(i)]}`), star = make("span", "star");
    say(option, { id: `option-${place}`, role: "option", "aria-setsize": shown.length, "aria-posinset": place + 1, "data-place": place });
    star.title = "Mark (Space)";
    // Where there is little room, the end of a path tells more than its beginning.
    const name = make("bdi", "name", (ids[i].length > 20 && ids[i].split(/[/\\]/).pop()) || ids[i]);
    name.title = ids[i];
    if (data.kind === "pictures") {
      const frame = make("span", "frame");
      frame.append(picture(i) || make("span", "nothing", "no picture kept"), ...badges(i, true), star);
      option.append(frame, name, saying(i));
    } else if (data.kind === "texts") {
      option.append(star, headed(name, saying(i), ...badges(i, true)), make("bdi", "excerpt", data.texts[i]));
    } else {
      option.append(star, headed(name, ...badges(i, true)), saying(i));
      option.append(...columns.map(column => make("bdi", column.texts ? "cell" : "cell number", column.text(i))));
    }
    return option;
  };
  const place = (option, at) => {
    const i = shown[at], row = Math.floor(at / grid.columns), column = at % grid.columns;
    const top = grid.head + row * (layout.height + layout.gap), several = grid.columns > 1;
    option.style.transform = several ? `translate(${column * (grid.span + layout.gap)}px, ${top}px)` : `translateY(${top}px)`;
    option.style.width = several ? `${grid.span}px` : "";
    option.style.height = `${layout.height}px`;
    say(option, { "aria-selected": i === chosen, "aria-label": describe(i, true) });
    option.classList.toggle("active", at === active);
    option.classList.toggle("marked", marks.has(i));
  };
  const measure = () => {
    const style = getComputedStyle(list), room = list.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const count = Math.max(1, Math.floor((room + layout.gap) / (layout.least + layout.gap)) || 1);
    grid = { columns: count, span: (room - (count - 1) * layout.gap) / count, head: find(".columns", sheet)?.offsetHeight || 0 };
    sheet.style.height = `${grid.head + Math.ceil(shown.length / count) * (layout.height + layout.gap)}px`;
  };
  const draw = () => {
    const step = layout.height + layout.gap, wanted = new Set();
    const begin = Math.max(0, Math.floor((list.scrollTop - grid.head) / step) - 2) * grid.columns;
    const end = Math.min(shown.length, (Math.ceil((list.scrollTop + list.clientHeight) / step) + 2) * grid.columns);
    for (let at = begin; at < end; at++) wanted.add(at);
    if (shown.length) wanted.add(active);  // a screen reader stands there
    for (const [at, option] of drawn) if (!wanted.has(at)) { option.remove(); drawn.delete(at); }
    for (const at of [...wanted].sort((a, b) => a - b)) {
      if (!drawn.has(at)) drawn.set(at, sheet.appendChild(build(shown[at], at)));
      place(drawn.get(at), at);
    }
    if (shown.length) say(list, { "aria-activedescendant": `option-${active}` });
    else list.removeAttribute("aria-activedescendant");
  };
  const reveal = () => {
    const top = Math.floor(active / grid.columns) * (layout.height + layout.gap), bottom = top + grid.head + layout.height;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight + 4;
    draw();
  };
  if (data.kind === "rows") {
    const head = sheet.appendChild(make("div", "columns"));
    say(head, { "aria-hidden": "true" });  // every option says what it holds
    head.append(make("span", "star"), make("span", "head", "Sample"), make("span", "saying", "Class → model"));
    head.append(...columns.map(column => make("bdi", column.texts ? "cell" : "cell number", column.name)));
    sheet.style.setProperty("--columns", columns.length);
  }

  // The detail panel.
  const pair = (name, value) => {
    const box = make("div"), content = make("dd");
    content.append(make("bdi", "", value));
    box.append(make("dt", "", name), content);
    return box;
  };
  const showDetail = () => {
    detail.hidden = chosen === null;
    find(".work").classList.toggle("open", chosen !== null);
    if (chosen === null) return;
    const i = chosen, facts = [pair("class", className(labels[i])), pair("pseudo-group", PARTS[isMinority(i)])];
    models.forEach((predicted, m) => {
      if (!predicted) return;
      facts.push(pair(`predicted, ${data.models[m]}`, className(predicted[i])));
      facts.at(-1).classList.toggle("err", predicted[i] !== labels[i]);
    });
    facts.push(pair("first and last loss", `${lossText(lossAt(i, 0))}, ${lossText(lossAt(i, width - 1))}`));
    facts.push(pair("margin, 0 at the boundary", margin[i].toFixed(2)));
    find(".look", detail).replaceChildren(...[picture(i)].filter(Boolean));
    find(".id", detail).replaceChildren(make("bdi", "", ids[i]));
    find(".flags", detail).replaceChildren(...badges(i));
    find(".sample-facts", detail).replaceChildren(...facts);
    const values = make("dl", "settings");
    values.append(...columns.map(column => pair(column.name, column.text(i))));
    find(".whole", detail).replaceChildren(...(data.texts ? [make("bdi", "excerpt", data.texts[i])] : columns.length ? [values] : []));
    dressMark();
    drawOwn(i);
  };
  const dressMark = () => {
    const button = find(".mark-this", detail), marked = chosen !== null && marks.has(chosen);
    say(button, { "aria-pressed": marked });
    button.textContent = marked ? "Marked" : "Mark";
  };

  // Everything together: filters, choosing, marking, exporting.
  const form = find(".filters"), field = name => form.elements[name], onlyMarked = find("#only-marked");
  const number = new Intl.NumberFormat("en");
  const later = (task, wait) => {
    let timer = 0;
    return () => { clearTimeout(timer); timer = setTimeout(task, wait); };
  };
  const offer = (name, choices) => field(name).append(...choices.map(([value, text]) => Object.assign(make("option", "", text), { value })));
  const PREDICTED = {
    baseline: [`${data.models[0]} model errs`, i => models[0][i] !== labels[i], models[0]],
    balanced: [`${data.models[1]} model errs`, i => models[1][i] !== labels[i], models[1]],
    fixed: [`only ${data.models[1]} is right`, i => models[0][i] !== labels[i] && models[1][i] === labels[i], models[0] && models[1]],
    broken: [`only ${data.models[0]} is right`, i => models[0][i] === labels[i] && models[1][i] !== labels[i], models[0] && models[1]],
  };
  offer("class", data.classes.map((name, i) => [i, name]));
  offer("sort", Object.entries(ORDERS).map(([name, [text]]) => [name, text]));
  offer("predicted", Object.entries(PREDICTED).filter(([, [, , known]]) => known).map(([name, [text]]) => [name, text]));
  find(".predictions").hidden = field("predicted").options.length === 1;

  // Which samples pass: all filters but triage first, so that the triage buttons can say their counts.
  const passing = () => {
    const tests = [], wanted = field("search").value.trim().toLowerCase();
    const label = field("class").value, part = field("part").value, predicted = field("predicted").value;
    if (label !== "") tests.push(i => labels[i] === Number(label));
    if (part !== "") tests.push(i => isMinority(i) === Number(part));
    if (predicted) tests.push(PREDICTED[predicted][1]);
    if (onlyMarked.checked) tests.push(i => marks.has(i));
    if (wanted) tests.push(matches(wanted));
    const order = ordered(field("sort").value);
    return tests.length ? order.filter(i => tests.every(test => test(i))) : order;
  };
  const count = () => {
    const samples = `${number.format(size)} sample${size === 1 ? "" : "s"}`;
    find(".shown").textContent = `${shown.length === size ? "All" : `${number.format(shown.length)} of`} ${samples}, ${number.format(marks.size)} marked`;
    find("#export .number").textContent = marks.size ? `(${number.format(marks.size)})` : "";
    find("#export").disabled = find("#clear-marks").disabled = marks.size === 0;
    find("#mark-shown").disabled = shown.length === 0;
  };
  const apply = () => {
    const passed = passing(), wanted = form.elements.triage.value, counts = [0, 0, 0];
    for (const i of passed) counts[triage(i)]++;
    for (const each of all("[data-count]")) each.textContent = number.format(each.dataset.count ? counts[each.dataset.count] : passed.length);
    shown = wanted ? passed.filter(i => triage(i) === Number(wanted)) : passed;
    active = Math.max(0, chosen === null ? 0 : shown.indexOf(chosen));
    list.scrollTop = 0;
    list.hidden = find(".keys").hidden = shown.length === 0;
    find(".empty").hidden = shown.length > 0;
    for (const option of drawn.values()) option.remove();
    drawn.clear();
    measure();
    reveal();
    count();
    drawPlots();
  };
  const choose = i => {
    chosen = i;
    const at = i === null ? -1 : shown.indexOf(i);
    if (at >= 0) active = at;
    showDetail();
    measure();
    if (at >= 0) reveal(); else draw();
    overlay(null);
  };
  const marked = () => {
    stored(DRAWER, JSON.stringify([...marks]));
    draw();
    dressMark();
    count();
  };
  const toggleMark = i => {
    if (!marks.delete(i)) marks.add(i);
    marked();
  };
  const close = () => {
    choose(null);
    list.focus({ preventScroll: true });
  };
  const reset = label => {
    form.reset();
    onlyMarked.checked = false;
    field("class").value = label;
    apply();
  };

  form.addEventListener("submit", event => event.preventDefault());
  for (const element of [form, onlyMarked]) element.addEventListener("change", apply);
  field("search").addEventListener("input", later(apply, 150));
  find("#reset").addEventListener("click", () => { reset(""); list.focus(); });
  for (const button of all(".explore")) {
    button.addEventListener("click", () => {
      reset(button.dataset.class);
      find("#explore").scrollIntoView();
      find("#explore").focus({ preventScroll: true });
    });
  }
  list.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  list.addEventListener("click", event => {
    const item = event.target.closest(".item");
    if (!item) return;
    active = Number(item.dataset.place);
    if (event.target.closest(".star")) toggleMark(shown[active]); else choose(shown[active]);
  });
  list.addEventListener("pointerover", event => {
    const item = event.target.closest(".item");
    overlay(item ? shown[Number(item.dataset.place)] : null);
  });
  list.addEventListener("pointerleave", () => overlay(null));
  list.addEventListener("keydown", event => {
    if (!shown.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(list.clientHeight / (layout.height + layout.gap))) * grid.columns;
    const moves = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.columns, ArrowDown: grid.columns, PageUp: -page, PageDown: page,
      Home: -shown.length, End: shown.length, Enter: 0,
    };
    if (event.key in moves) {
      event.preventDefault();
      active = Math.min(shown.length - 1, Math.max(0, active + moves[event.key]));
      choose(shown[active]);
    } else if (event.key === " " || event.key === "m") {
      event.preventDefault();
      toggleMark(shown[active]);
    }
  });
  addEventListener("keydown", event => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName) && document.activeElement.type !== "radio";
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      field("search").focus();
    } else if (event.key === "Escape" && chosen !== null && !typing) close();
  });
  find(".close", detail).addEventListener("click", close);
  find(".mark-this", detail).addEventListener("click", () => toggleMark(chosen));
  find("#mark-shown").addEventListener("click", () => { for (const i of shown) marks.add(i); marked(); });
  find("#clear-marks").addEventListener("click", () => { marks.clear(); if (onlyMarked.checked) apply(); marked(); });
  find("#export").addEventListener("click", () => {
    const file = new Blob([csv([...marks].sort((a, b) => a - b))], { type: "text/csv;charset=utf-8" });
    const link = Object.assign(make("a"), { href: URL.createObjectURL(file), download: "marked.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });

  // Pointing at a plot shows the sample beside the pointer.
  const tip = find(".tip");
  const showTip = (i, event) => {
    tip.hidden = i === null;
    if (i === null) return;
    const words = make("div");
    words.append(make("bdi", "name", ids[i]), make("span", "soft", describe(i).slice(ids[i].length + 2)));
    if (data.texts) words.append(make("bdi", "excerpt", data.texts[i].slice(0, 120)));
    tip.replaceChildren(...[picture(i), words].filter(Boolean));
    const { clientWidth: w, clientHeight: h } = root, box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 16, w - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 20 + box.height > h ? event.clientY - box.height - 12 : event.clientY + 20}px`;
  };
  for (const plot of [curvesPlot, mapPlot]) {
    const at = event => {
      const box = plot.box.getBoundingClientRect();
      return plot.at(event.clientX - box.left, event.clientY - box.top);
    };
    plot.box.addEventListener("pointermove", event => {
      const i = at(event);
      plot.box.classList.toggle("on", i !== null);
      overlay(i);
      showTip(i, event);
    });
    plot.box.addEventListener("pointerleave", event => { overlay(null); showTip(null, event); });
    plot.box.addEventListener("click", event => {
      const i = at(event);
      if (i !== null) choose(i);
    });
  }

  find(".tools").hidden = false;
  apply();
  addEventListener("resize", later(() => { measure(); reveal(); }, 100));
  performance.mark("evenhand-ready");
  root.dataset.ready = "yes";
