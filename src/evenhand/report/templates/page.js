"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Light or dark: the reader's system decides until the reader does.
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => { try { return localStorage.getItem("evenhand-theme"); } catch { return null; } };
  const remember = theme => { try { localStorage.setItem("evenhand-theme", theme); } catch { /* a private window */ } };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  const toggle = document.querySelector(".theme");
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    remember(root.dataset.theme);
  });

  // Charts: pointer or arrow keys read out an epoch.
  const charts = new Map();
  for (const figure of all(".chart")) {
    const series = data[figure.dataset.chart];
    const svg = figure.querySelector(".plot > svg");
    const cursor = figure.querySelector(".cursor");
    const outputs = all("output", figure);
    const at = figure.querySelector(".at");
    const last = series.x.length - 1;
    const share = position => last ? (series.x[position] - series.x[0]) / (series.x[last] - series.x[0]) : 0.5;
    let current = null;
    const show = position => {
      current = position;
      cursor.classList.toggle("on", position !== null);
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, `${100 * share(position ?? 0)}%`);
      at.textContent = position === null ? "" : `epoch ${series.x[position]}`;
      outputs.forEach((output, i) => {
        const value = position === null ? null : series.series[i][position];
        output.textContent = value === null ? "" : series.share ? `${value.toFixed(1)}%` : value.toFixed(2);
      });
    };
    const nearest = event => {
      const box = svg.getBoundingClientRect();
      const wanted = (event.clientX - box.left) / box.width;
      return series.x.reduce((best, _, i) => Math.abs(share(i) - wanted) < Math.abs(share(best) - wanted) ? i : best, 0);
    };
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("pointermove", event => show(nearest(event)));
    svg.addEventListener("pointerleave", () => show(null));
    svg.addEventListener("blur", () => show(null));
    svg.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      show(current === null ? (step > 0 ? 0 : last) : Math.min(last, Math.max(0, current + step)));
    });
    charts.set(figure.dataset.chart, { series, figure, share });
  }

  // Samples: hover or focus draws a sample's own history into its class's chart; a click keeps it there.
  const pinned = new Map();
  const trace = (name, button) => {
    const { series, figure, share } = charts.get(name);
    const path = figure.querySelector(".line.trace");
    const legend = figure.querySelector(".traced");
    legend.hidden = !button;
    if (!button) return path.setAttribute("d", "");
    legend.querySelector("span").textContent = button.dataset.label;
    const height = path.ownerSVGElement.viewBox.baseVal.height;
    const y = value => height * (series.high - value) / (series.high - series.low);
    const points = series.samples[Number(button.dataset.sample)].map((value, i) => `${1000 * share(i)} ${y(value)}`);
    path.setAttribute("d", "M" + (points.length > 1 ? points.join("L") : `0 ${points[0].split(" ")[1]}H1000`));
  };
  for (const gallery of all(".samples")) {
    const buttons = all(".sample", gallery);
    buttons.forEach((button, i) => {
      button.addEventListener("keydown", event => {
        const step = { ArrowLeft: -1, ArrowRight: 1, Home: -buttons.length, End: buttons.length }[event.key];
        if (!step) return;
        event.preventDefault();
        const next = buttons[Math.min(buttons.length - 1, Math.max(0, i + step))];
        button.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      });
      const name = button.dataset.trace;
      if (!name) return;
      button.setAttribute("aria-pressed", "false");
      const rest = () => trace(name, pinned.get(name));
      button.addEventListener("pointerenter", () => trace(name, button));
      button.addEventListener("focus", () => trace(name, button));
      button.addEventListener("pointerleave", rest);
      button.addEventListener("blur", rest);
      button.addEventListener("click", () => {
        const before = pinned.get(name);
        if (before) before.setAttribute("aria-pressed", "false");
        if (before === button) pinned.delete(name);
        else {
          pinned.set(name, button);
          button.setAttribute("aria-pressed", "true");
        }
        trace(name, pinned.get(name));
      });
    });
  }

  // Commands can be copied, where the browser lets a local file do that.
  if (navigator.clipboard) {
    for (const button of all(".copy")) {
      button.hidden = false;
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(button.previousElementSibling.textContent);
          button.textContent = "Copied";
        } catch {
          button.textContent = "Not allowed";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
    }
  }

  // Paper cannot be unfolded.
  const folded = [];
  addEventListener("beforeprint", () => all("details:not([open])").forEach(each => { each.open = true; folded.push(each); }));
  addEventListener("afterprint", () => folded.splice(0).forEach(each => { each.open = false; }));
})();
