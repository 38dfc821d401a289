  // The samples: columns as typed arrays, decoded once. Whatever comes from data is only ever set as text.
  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const data = JSON.parse(find("#data").textContent);
  const decode = name => {
    const element = document.getElementById(`block-${name}`);
    if (!element) return null;
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(element.textContent);
    const raw = atob(element.textContent), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  };
  const integers = name => {
    const bytes = decode(name);
    if (!bytes) return null;
    const Type = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[bytes.length / size];
    return new Type(bytes.buffer);
  };
  const size = data.ids.length, width = data.epochs.length;
  const curves = decode("curves");  // (samples, epochs): codes 0 to 254 on a logarithmic scale, 255 is missing
  const MISSING = 255;
  const positions = integers("positions"), labels = integers("labels"), flags = integers("flags");
  const margin = new Float32Array(decode("margin").buffer);
  const models = [integers("baseline"), integers("balanced")];
  const ids = (() => {
    const shared = decode("shared"), found = new Array(size);
    for (let i = 0; i < size; i++) found[i] = shared[i] ? found[i - 1].slice(0, shared[i]) + data.ids[i] : data.ids[i];
    return found;
  })();
  const isMinority = i => flags[i] & 1;
  const triage = i => flags[i] >> 1;
  const TRIAGE = ["", "likely minority", "likely mislabelled"];
  const loss = code => data.floor * (data.high / data.floor) ** (code / 254);
  const lossText = code => code === MISSING ? "not recorded" : code === 0 ? `at most ${data.floor}` : loss(code).toPrecision(2);

  // Mean codes, that is geometric mean losses, of the first and second half of training.
  const early = new Float32Array(size), late = new Float32Array(size), last = new Uint8Array(size);
  {
    const half = Math.max(1, width >> 1);
    const mean = (i, begin, end) => {
      let sum = 0, count = 0;
      for (let e = begin; e < end; e++) {
        const code = curves[i * width + e];
        if (code !== MISSING) { sum += code; count++; }
      }
      return count ? sum / count : 0;
    };
    for (let i = 0; i < size; i++) {
      early[i] = mean(i, 0, half);
      late[i] = width > 1 ? mean(i, half, width) : early[i];
      last[i] = curves[i * width + width - 1];
    }
  }

  // What can be seen of a sample.
  const pictureOf = new Map((data.pictures || []).map((owner, i) => [owner, i]));
  let pictures = null;
  const picture = i => {
    if (!pictureOf.has(i)) return null;
    pictures ??= JSON.parse(find("#pictures").textContent);
    const image = make("img");
    image.src = `data:image/${pictures[pictureOf.get(i)]}`;
    image.alt = "";
    image.decoding = "async";
    image.addEventListener("load", () => image.classList.toggle("pixelated", image.naturalWidth <= 32), { once: true });
    return image;
  };
  const columns = (data.columns || []).map(({ name, block, texts }) => {
    const values = texts ? integers(block) : new Float32Array(decode(block).buffer);
    const text = i => texts ? texts[values[i]] : Number.isNaN(values[i]) ? "" : String(Number(values[i].toPrecision(6)));
    return { name, texts, values, text };  // texts are sorted, so their codes sort like them
  });
  const className = position => data.classes[position];
  // What a screen reader says of a sample; `whole` adds what others see of it.
  const describe = (i, whole) => [
    ids[i], `class ${className(labels[i])}`, isMinority(i) ? "minority" : "majority", TRIAGE[triage(i)],
    ...models.map((predicted, m) => predicted && predicted[i] !== labels[i] ? `${data.models[m]} model says ${className(predicted[i])}` : ""),
    ...(whole && data.texts ? [data.texts[i].slice(0, 160)] : []),
    ...(whole ? columns.slice(0, 12).map(column => `${column.name} ${column.text(i) || "missing"}`) : []),
    marks.has(i) ? "marked" : "",
  ].filter(Boolean).join(", ");

  // Marks outlive a reload, where the browser keeps anything for local files; only positions are kept.
  const marks = new Set();
  const drawer = `evenhand-marks ${data.title} ${size} ${ids[0]} ${ids[size - 1]}`;
  try {
    for (const i of JSON.parse(localStorage.getItem(drawer) || "[]")) if (i in ids) marks.add(i);
  } catch { /* a private window */ }
  const keepMarks = () => {
    try { localStorage.setItem(drawer, JSON.stringify([...marks])); } catch { /* a private window, or too many */ }
  };

  // A cell of a CSV file: quoted where needed, and never a formula, which a spreadsheet would run.
  const cell = value => {
    let text = String(value);
    if (typeof value === "string" && /^\s*[=+\-@|%＝＋－＠]|^[\t\r\n]/.test(text)) text = `'${text}`;
    return /[",\r\n']/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = chosen => {
    const header = ["position", "id", "class", "pseudo_group", "triage", "margin", "last_loss"];
    const predictedBy = models.map((predicted, m) => [predicted, m]).filter(([predicted]) => predicted);
    header.push(...predictedBy.map(([, m]) => ["predicted_baseline", "predicted_balanced"][m]));
    const rows = chosen.map(i => [
      positions[i], ids[i], className(labels[i]), isMinority(i) ? "minority" : "majority", TRIAGE[triage(i)].replace("likely ", ""),
      Number(margin[i].toFixed(4)), last[i] === MISSING ? "" : Number(loss(last[i]).toPrecision(3)),
      ...predictedBy.map(([predicted]) => className(predicted[i])),
    ]);
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
      if (rank) {
        const keys = Float64Array.from(order, rank).map(key => Number.isNaN(key) ? Infinity : key);
        order.sort((a, b) => keys[a] - keys[b] || a - b);
      } else {
        const keys = ids.map(id => id.replace(/\d+/g, digits => digits.padStart(15, "0")));  // 9 before 10
        order.sort((a, b) => keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b);
      }
      orders.set(name, order);
    }
    return orders.get(name);
  };
  let lowered = null;
  const matches = wanted => {
    lowered ??= ids.map((id, i) => `${id}\n${data.texts ? data.texts[i] : ""}`.toLowerCase());
    return i => lowered[i].includes(wanted);
  };
