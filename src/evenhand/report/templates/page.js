  // Light or dark: the reader's system decides until the reader does.
  const dark = matchMedia("(prefers-color-scheme: dark)"), THEME = "evenhand-theme";
  const stored = (name, value) => {  // a private window keeps nothing
    try {
      if (value === undefined) return localStorage.getItem(name);
      localStorage.setItem(name, value);
    } catch { /* neither read nor kept */ }
    return null;
  };
  const redraw = () => plots.forEach(plot => plot.draw());
  const toggle = find(".theme");
  if (["light", "dark"].includes(stored(THEME))) root.dataset.theme = stored(THEME);
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
    stored(THEME, root.dataset.theme);
    redraw();
  });
  dark.addEventListener("change", redraw);

  // Samples of a class: pointer or focus draws a sample's own losses into the chart of its class; a click keeps them.
  for (const panel of all(".panel")) {
    const figure = find("[data-plot]", panel), plot = charts.get(figure), note = make("li", "traced");
    let pinned = null;
    const trace = button => {
      note.textContent = button ? button.dataset.label : "";
      const y = button && plot.spec.samples[Number(button.dataset.sample)];
      plot.trace(y ? [{ colour: "ink", x: plot.spec.series[0].x, y, width: 1.5, dash: [5, 3] }] : []);
    };
    if (plot) find(".legend .read", figure).before(note);
    for (const gallery of all(".samples", panel)) {
      const buttons = all("button", gallery);
      buttons.forEach((button, i) => {
        button.addEventListener("keydown", event => {
          const step = { ArrowLeft: -1, ArrowRight: 1, Home: -buttons.length, End: buttons.length }[event.key];
          if (!step) return;
          event.preventDefault();
          const next = buttons[Math.min(buttons.length - 1, Math.max(0, i + step))];
          [button.tabIndex, next.tabIndex] = [-1, 0];
          next.focus();
        });
        if (!plot) return;
        say(button, { "aria-pressed": "false" });
        for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => trace(button));
        for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => trace(pinned));
        button.addEventListener("click", () => {
          pinned?.setAttribute("aria-pressed", "false");
          pinned = pinned === button ? null : button;
          pinned?.setAttribute("aria-pressed", "true");
          trace(pinned);
        });
      });
    }
  }

  // Commands can be copied, where the browser lets a local file do that.
  for (const button of navigator.clipboard ? all(".copy") : []) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const copied = await navigator.clipboard.writeText(button.previousElementSibling.textContent).then(() => true, () => false);
      button.textContent = copied ? "Copied" : "Not allowed";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // Paper is light and cannot be unfolded.
  const folded = [];
  addEventListener("beforeprint", () => {
    folded.push(root.dataset.theme, ...all("details:not([open])"));
    root.dataset.theme = "light";
    folded.slice(1).forEach(each => { each.open = true; });
    redraw();
  });
  addEventListener("afterprint", () => {
    const [theme, ...closed] = folded.splice(0);
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    closed.forEach(each => { each.open = false; });
    redraw();
  });
