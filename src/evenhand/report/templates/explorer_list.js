  // The list: as many samples as anyone likes, of which only those in view are in the document.
  const list = find("#list"), sheet = find(".sheet", list);
  const KINDS = {
    pictures: { least: 116, gap: 12, height: 172 },
    texts: { least: Infinity, gap: 0, height: 96 },
    rows: { least: Infinity, gap: 0, height: 44 },
    none: { least: 240, gap: 10, height: 62 },
  };
  const layout = KINDS[data.kind];
  let shown = new Uint32Array(0);  // samples that pass the filters, in order
  let active = 0;                  // place in `shown` that the keyboard is at
  let chosen = null;               // the sample in the detail panel
  const drawn = new Map();         // place -> element
  let grid = { columns: 1, span: 0, head: 0 };
  list.classList.add(data.kind);

  const badges = i => {
    if (!triage(i)) return [];
    const badge = triage(i) === 1 ? make("span", "badge late", "late") : make("span", "badge wrong", "label?");
    badge.title = TRIAGE[triage(i)];
    return [badge];
  };
  // "cat → dog": what the newest model says where it errs.
  const saying = i => {
    const line = make("span", "saying"), predicted = models[1] || models[0];
    const wrong = predicted && predicted[i] !== labels[i];
    line.append(make("bdi", "", className(labels[i])));
    if (wrong) line.append(make("span", "err", " → "), make("bdi", "err", className(predicted[i])));
    return line;
  };
  const named = i => {
    // Where there is little room, the end of a path tells more than its beginning.
    const end = ids[i].length > 20 ? ids[i].split(/[/\\]/).pop() : "";
    const line = make("bdi", "name", end || ids[i]);
    line.title = ids[i];
    return line;
  };
  const build = (i, place) => {
    const option = make("div", `item ${isMinority(i) ? "minority" : "majority"}`);
    option.id = `option-${place}`;
    option.setAttribute("role", "option");
    option.setAttribute("aria-setsize", shown.length);
    option.setAttribute("aria-posinset", place + 1);
    option.dataset.place = place;
    const star = make("span", "star");
    star.title = "Mark (Space)";
    if (data.kind === "pictures") {
      const frame = make("span", "frame");
      frame.append(picture(i) || make("span", "nothing", "no picture kept"), ...badges(i), star);
      option.append(frame, named(i), saying(i));
    } else if (data.kind === "texts") {
      const head = make("span", "head");
      head.append(named(i), saying(i), ...badges(i));
      option.append(star, head, make("bdi", "excerpt", data.texts[i]));
    } else if (data.kind === "rows") {
      const head = make("span", "head");
      head.append(named(i), ...badges(i));
      option.append(star, head, saying(i));
      for (const column of columns) option.append(make("bdi", column.texts ? "cell" : "cell number", column.text(i)));
    } else {
      const head = make("span", "head");
      head.append(named(i), ...badges(i));
      option.append(star, head, saying(i));
    }
    return option;
  };
  const dress = (option, i, place) => {
    option.setAttribute("aria-selected", i === chosen);
    option.setAttribute("aria-label", describe(i, true));
    option.classList.toggle("active", place === active);
    option.classList.toggle("marked", marks.has(i));
  };
  const place = (option, at) => {
    const row = Math.floor(at / grid.columns), column = at % grid.columns;
    const top = grid.head + row * (layout.height + layout.gap);
    option.style.transform = grid.columns > 1 ? `translate(${column * (grid.span + layout.gap)}px, ${top}px)` : `translateY(${top}px)`;
    option.style.width = grid.columns > 1 ? `${grid.span}px` : "";
    option.style.height = `${layout.height}px`;
  };
  const measure = () => {
    const style = getComputedStyle(list);
    const room = list.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const count = Math.max(1, Math.floor((room + layout.gap) / (layout.least + layout.gap)) || 1);
    const head = find(".columns", sheet)?.offsetHeight || 0;
    grid = { columns: count, span: (room - (count - 1) * layout.gap) / count, head };
    sheet.style.height = `${head + Math.ceil(shown.length / count) * (layout.height + layout.gap)}px`;
  };
  const draw = () => {
    const step = layout.height + layout.gap;
    const begin = Math.max(0, Math.floor((list.scrollTop - grid.head) / step) - 2) * grid.columns;
    const end = Math.min(shown.length, (Math.ceil((list.scrollTop + list.clientHeight) / step) + 2) * grid.columns);
    const wanted = new Set();
    for (let at = begin; at < end; at++) wanted.add(at);
    if (shown.length) wanted.add(active);  // a screen reader stands there
    for (const [at, option] of drawn) if (!wanted.has(at)) { option.remove(); drawn.delete(at); }
    for (const at of [...wanted].sort((a, b) => a - b)) {
      let option = drawn.get(at);
      if (!option) {
        option = build(shown[at], at);
        drawn.set(at, option);
        sheet.append(option);
      }
      place(option, at);
      dress(option, shown[at], at);
    }
    if (shown.length) list.setAttribute("aria-activedescendant", `option-${active}`);
    else list.removeAttribute("aria-activedescendant");
  };
  const redraw = () => {
    for (const option of drawn.values()) option.remove();
    drawn.clear();
    measure();
    draw();
  };
  const reveal = () => {
    const top = Math.floor(active / grid.columns) * (layout.height + layout.gap), bottom = top + grid.head + layout.height;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight + 4;
    draw();
  };
  if (data.kind === "rows") {
    const head = make("div", "columns");
    head.setAttribute("aria-hidden", "true");  // every option says what it holds
    head.append(make("span", "star"), make("span", "head", "Sample"), make("span", "saying", "Class → model"));
    for (const column of columns) head.append(make("bdi", column.texts ? "cell" : "cell number", column.name));
    sheet.append(head);
    sheet.style.setProperty("--columns", columns.length);
  }

  // The detail panel.
  const detail = find("#detail");
  const pair = (name, value) => {
    const box = make("div");
    const content = make("dd");
    content.append(make("bdi", "", value));
    box.append(make("dt", "", name), content);
    return box;
  };
  const showDetail = () => {
    detail.hidden = chosen === null;
    find(".work").classList.toggle("open", chosen !== null);
    if (chosen === null) return;
    const i = chosen;
    find(".look", detail).replaceChildren(...[picture(i)].filter(Boolean));
    find(".id", detail).replaceChildren(make("bdi", "", ids[i]));
    const kind = triage(i) ? [make("span", triage(i) === 1 ? "badge late" : "badge wrong", TRIAGE[triage(i)])] : [];
    find(".flags", detail).replaceChildren(...kind);
    const facts = [pair("class", className(labels[i])), pair("pseudo-group", isMinority(i) ? "minority" : "majority")];
    models.forEach((predicted, m) => {
      if (!predicted) return;
      const row = pair(`predicted, ${data.models[m]}`, className(predicted[i]));
      row.classList.toggle("err", predicted[i] !== labels[i]);
      facts.push(row);
    });
    facts.push(pair("first and last loss", `${lossText(curves[i * width])}, ${lossText(last[i])}`), pair("margin, 0 at the boundary", margin[i].toFixed(2)));
    find(".sample-facts", detail).replaceChildren(...facts);
    const whole = find(".whole", detail);
    if (data.texts) whole.replaceChildren(make("bdi", "excerpt", data.texts[i]));
    else if (columns.length) {
      const values = make("dl", "settings");
      values.append(...columns.map(column => pair(column.name, column.text(i))));
      whole.replaceChildren(values);
    }
    dressMark();
    drawOwn(i);
  };
  const dressMark = () => {
    const button = find(".mark-this", detail), marked = chosen !== null && marks.has(chosen);
    button.setAttribute("aria-pressed", marked);
    button.textContent = marked ? "Marked" : "Mark";
  };
