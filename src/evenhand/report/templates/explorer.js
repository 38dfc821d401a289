  // Everything together: filters, choosing, marking, exporting.
  const tools = find(".tools"), form = find(".filters"), field = name => form.elements[name];
  const number = new Intl.NumberFormat("en");
  const counted = (count, noun) => `${number.format(count)} ${noun}${count === 1 ? "" : "s"}`;
  const later = (task, wait) => {
    let timer = 0;
    return () => { clearTimeout(timer); timer = setTimeout(task, wait); };
  };
  const option = (value, text) => {
    const element = make("option", "", text);
    element.value = value;
    return element;
  };
  field("class").append(...data.classes.map((name, i) => option(i, name)));
  field("sort").append(...Object.entries(ORDERS).map(([name, [text]]) => option(name, text)));
  const PREDICTED = {
    baseline: [`${data.models[0]} model errs`, i => models[0][i] !== labels[i], models[0]],
    balanced: [`${data.models[1]} model errs`, i => models[1][i] !== labels[i], models[1]],
    fixed: [`only ${data.models[1]} is right`, i => models[0][i] !== labels[i] && models[1][i] === labels[i], models[0] && models[1]],
    broken: [`only ${data.models[0]} is right`, i => models[0][i] === labels[i] && models[1][i] !== labels[i], models[0] && models[1]],
  };
  for (const [name, [text, , known]] of Object.entries(PREDICTED)) if (known) field("predicted").append(option(name, text));
  find(".predictions").hidden = field("predicted").options.length === 1;

  // Which samples pass: all filters but triage first, so that the triage buttons can say their counts.
  const passing = () => {
    const tests = [], wanted = field("search").value.trim().toLowerCase();
    const label = field("class").value, part = field("part").value, predicted = field("predicted").value;
    if (label !== "") tests.push(i => labels[i] === Number(label));
    if (part !== "") tests.push(i => isMinority(i) === Number(part));
    if (predicted) tests.push(PREDICTED[predicted][1]);
    if (find("#only-marked").checked) tests.push(i => marks.has(i));
    if (wanted) tests.push(matches(wanted));
    const order = ordered(field("sort").value);
    return tests.length ? order.filter(i => tests.every(test => test(i))) : order;
  };
  const overlay = pointed => {
    for (const plot of [curvesPlot, mapPlot]) {
      const [context] = prepared(find(".over", plot.box));
      if (chosen !== null) plot.highlight(context, chosen, true);
      if (pointed !== null && pointed !== chosen) plot.highlight(context, pointed, false);
    }
  };
  const drawPlots = () => {
    curvesPlot.draw(shown);
    mapPlot.draw(shown);
    overlay(null);
    if (chosen !== null) drawOwn(chosen);
  };
  const say = () => {
    find(".shown").textContent = `${shown.length === size ? "All" : `${number.format(shown.length)} of`} ${counted(size, "sample")}, ${number.format(marks.size)} marked`;
    const button = find("#export");
    find(".number", button).textContent = marks.size ? `(${number.format(marks.size)})` : "";
    button.disabled = find("#clear-marks").disabled = marks.size === 0;
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
    redraw();
    if (active) reveal();
    say();
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
  const toggle = i => {
    if (!marks.delete(i)) marks.add(i);
    marked();
  };
  const marked = () => {
    keepMarks();
    draw();
    dressMark();
    say();
  };

  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("change", apply);
  find("#only-marked").addEventListener("change", apply);
  field("search").addEventListener("input", later(apply, 150));
  const reset = () => {
    form.reset();
    find("#only-marked").checked = false;
    apply();
  };
  find("#reset").addEventListener("click", () => { reset(); list.focus(); });
  for (const button of all(".explore")) {
    button.addEventListener("click", () => {
      form.reset();
      find("#only-marked").checked = false;
      field("class").value = button.dataset.class;
      apply();
      find("#explore").scrollIntoView();
      find("#explore").focus({ preventScroll: true });
    });
  }

  list.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  list.addEventListener("click", event => {
    const item = event.target.closest(".item");
    if (!item) return;
    active = Number(item.dataset.place);
    if (event.target.closest(".star")) toggle(shown[active]);
    else choose(shown[active]);
  });
  list.addEventListener("pointerover", event => {
    const item = event.target.closest(".item");
    overlay(item ? shown[Number(item.dataset.place)] : null);
  });
  list.addEventListener("pointerleave", () => overlay(null));
  list.addEventListener("keydown", event => {
    if (!shown.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(list.clientHeight / (layout.height + layout.gap))) * grid.columns;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.columns, ArrowDown: grid.columns, PageUp: -page, PageDown: page, Home: -shown.length, End: shown.length };
    if (event.key in moves) {
      event.preventDefault();
      active = Math.min(shown.length - 1, Math.max(0, active + moves[event.key]));
      choose(shown[active]);
    } else if (event.key === " " || event.key === "m") {
      event.preventDefault();
      toggle(shown[active]);
    } else if (event.key === "Enter") choose(shown[active]);
  });
  addEventListener("keydown", event => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName) && document.activeElement.type !== "radio";
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      field("search").focus();
    } else if (event.key === "Escape" && chosen !== null && !typing) close();
  });
  const close = () => {
    choose(null);
    list.focus({ preventScroll: true });
  };
  find(".close", detail).addEventListener("click", close);
  find(".mark-this", detail).addEventListener("click", () => toggle(chosen));
  find("#mark-shown").addEventListener("click", () => { for (const i of shown) marks.add(i); marked(); });
  find("#clear-marks").addEventListener("click", () => { marks.clear(); if (find("#only-marked").checked) apply(); marked(); });
  find("#export").addEventListener("click", () => {
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([csv([...marks].sort((a, b) => a - b))], { type: "text/csv;charset=utf-8" }));
    link.download = "marked.csv";
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
    const { clientWidth: w, clientHeight: h } = document.documentElement, box = tip.getBoundingClientRect();
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

  // Light or dark: the reader's system decides until the reader does.
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = find(".theme");
  const recolour = () => { colour = colours(); drawPlots(); };
  try {
    const kept = localStorage.getItem("evenhand-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* a private window */ }
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
    try { localStorage.setItem("evenhand-theme", root.dataset.theme); } catch { /* a private window */ }
    recolour();
  });
  dark.addEventListener("change", recolour);

  tools.hidden = false;
  colour = colours();
  apply();
  let before = innerWidth;
  addEventListener("resize", later(() => {
    measure();
    reveal();
    if (innerWidth !== before) { before = innerWidth; drawPlots(); }
  }, 100));
  performance.mark("evenhand-ready");
  root.dataset.ready = "yes";
