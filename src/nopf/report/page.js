"use strict";
(async () => {
  const data = JSON.parse(await unpacked("data"));
  (0, eval)(await unpacked("plotly"));
  const drawn = new Map(); // plot → function that draws it in the current colours

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isDark = () =>
    matchMedia("(prefers-color-scheme: dark)").matches &&
    !document.documentElement.classList.contains("paper");
  // On dark paper halfway to white, so that the dark ones of the catalogue are seen.
  const lighter = (hex) =>
    "#" + hex.slice(1).match(/../g)
      .map((part) => Math.round((parseInt(part, 16) + 255) / 2).toString(16).padStart(2, "0"))
      .join("");
  const colour = (name) => {
    if (name === "kf") return css("--ink");
    return isDark() ? lighter(data.colours[name]) : data.colours[name];
  };
  const layout = (more) => {
    const axis = { gridcolor: css("--line"), zeroline: false, linecolor: css("--line") };
    const { xaxis, yaxis, ...rest } = more;
    return {
      margin: { l: 60, r: 10, t: 30, b: 45 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: css("--ink"), family: "system-ui, sans-serif", size: 13 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      xaxis: { ...axis, ...xaxis },
      yaxis: { ...axis, ...yaxis },
      ...rest,
    };
  };
  const settings = { responsive: true, displaylogo: false, displayModeBar: false };
  const faded = (name, share) =>
    colour(name) + Math.round(255 * share).toString(16).padStart(2, "0");

  function band(name, x, low, high) {
    return {
      x: x.concat([...x].reverse()), y: high.concat([...low].reverse()), fill: "toself",
      fillcolor: faded(name, 0.15), line: { width: 0 }, hoverinfo: "skip", showlegend: false,
      legendgroup: name, mode: "lines",
    };
  }
  function line(name, x, y, more) {
    return {
      x, y, mode: "lines", name: data.labels[name], legendgroup: name,
      line: { color: colour(name), width: 2 }, ...more,
    };
  }

  function cloud(div, bench, name) {
    const view = bench.clouds;
    const own = view.filters[name];
    const soFar = (path, k) => [path[0].slice(0, k + 1), path[1].slice(0, k + 1)];
    const frame = (k) => {
      const traces = [
        own.proposed[k], own.kept[k],
        soFar(view.truth, k), [[view.truth[0][k]], [view.truth[1][k]]],
        soFar(own.mean, k), own.ellipses[k],
      ];
      return { x: traces.map((t) => t[0]), y: traces.map((t) => t[1]) };
    };
    const ranges = (k) => [0, 1].map((axis) => {
      if (!bench.near) return view.range[axis];
      const middle = view.truth[axis][k];
      return [middle - view.near, middle + view.near];
    });
    const draw = () => {
      const k = bench.step || 0;
      const { x, y } = frame(k);
      const looks = [
        { mode: "markers", name: "proposed", marker: { color: css("--faint"), size: 4, opacity: 0.35 } },
        { mode: "markers", name: "by weight", marker: { color: colour(name), size: 5, opacity: 0.6 } },
        { mode: "lines", name: "truth so far", line: { color: css("--ink"), width: 1.5 } },
        { mode: "markers", name: "truth", marker: { color: css("--ink"), size: 13, symbol: "star" } },
        { mode: "lines", name: "estimate so far", line: { color: colour(name), width: 2 } },
        { mode: "lines", name: "90 %", line: { color: colour(name), width: 2, dash: "dot" } },
      ];
      const traces = x.map((_, i) => ({ x: x[i], y: y[i], hoverinfo: "skip", ...looks[i] }));
      if (view.landmarks[0].length) {
        traces.push({
          x: view.landmarks[0], y: view.landmarks[1], mode: "markers", name: "landmarks",
          hoverinfo: "skip", marker: { color: css("--ink"), size: 9, symbol: "triangle-up" },
        });
      }
      const [across, up] = ranges(k);
      const more = {
        title: { text: data.labels[name], font: { size: 15 } },
        showlegend: false,
        margin: { l: 55, r: 10, t: 35, b: 42 },
        xaxis: { title: { text: view.plane[0] }, range: across },
        yaxis: {
          title: { text: view.plane[1] }, range: up,
          ...(view.equal && { scaleanchor: "x" }),
        },
      };
      return Plotly.react(div, traces, layout(more), settings);
    };
    div.showStep = (k) => {
      const { x, y } = frame(k);
      const [across, up] = ranges(k);
      Plotly.update(div, { x, y }, { "xaxis.range": across, "yaxis.range": up }, x.map((_, i) => i));
    };
    return draw;
  }

  function overTime(div, bench, kind) {
    return () => {
      const traces = [];
      for (const [name, own] of Object.entries(bench[kind])) {
        const x = own.middle.map((_, i) => i + 1);
        if (own.low) traces.push(band(name, x, own.low, own.high));
        traces.push(line(name, x, own.middle));
      }
      const log = kind === "ess";
      const more = {
        xaxis: { title: { text: "step" } },
        yaxis: {
          title: { text: log ? "ESS" : "difference" }, type: log ? "log" : "linear",
          ...(log && { dtick: 1 }),
        },
      };
      return Plotly.react(div, traces, layout(more), settings);
    };
  }

  function sweep(div, bench) {
    return () => {
      const metric = document.getElementById(`metric-${bench.name}`).value;
      const traces = [];
      for (const [name, points] of Object.entries(bench.sweep[metric])) {
        const [x, mean, low, high] = [0, 1, 2, 3].map((c) => points.map((p) => p[c]));
        traces.push(band(name, x, low, high));
        traces.push(line(name, x, mean, { mode: "lines+markers" }));
      }
      const log = data.logarithmic.includes(metric);
      const more = {
        xaxis: { title: { text: "particles" }, type: "log", dtick: 1 },
        yaxis: { title: { text: data.titles[metric] }, type: log ? "log" : "linear" },
      };
      return Plotly.react(div, traces, layout(more), settings);
    };
  }

  function maker(div) {
    const bench = data.benchmarks[div.dataset.benchmark];
    if (div.dataset.kind === "cloud") return cloud(div, bench, div.dataset.filter);
    if (div.dataset.kind === "sweep") return sweep(div, bench);
    return overTime(div, bench, div.dataset.kind);
  }
  const draw = (div) => {
    if (!drawn.has(div)) drawn.set(div, maker(div));
    return drawn.get(div)();
  };

  // Plots are drawn when they come near, so that a phone is not kept busy by what nobody sees.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "600px" });
  document.querySelectorAll(".plot").forEach((div) => near.observe(div));
  const redraw = () => {
    for (const one of drawn.values()) one();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // On paper everything is shown, in the light colours and as wide as the paper.
  const paper = (begins) => {
    document.documentElement.classList.toggle("paper", begins);
    if (begins) document.querySelectorAll(".plot").forEach((div) => drawn.has(div) || draw(div));
    redraw();
    for (const div of drawn.keys()) {
      const size = begins
        ? { width: div.dataset.kind === "cloud" ? 330 : 680, autosize: false }
        : { width: null, autosize: true };
      Plotly.relayout(div, size);
    }
  };
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));

  for (const player of document.querySelectorAll(".player")) {
    const bench = data.benchmarks[player.dataset.benchmark];
    const [button, slider, output, speed, view] =
      ["button", "input", "output", ".speed", ".view"].map((s) => player.querySelector(s));
    const clouds = document.querySelectorAll(
      `.plot[data-kind=cloud][data-benchmark="${bench.name}"]`);
    const { time } = bench.clouds;
    let timer = null;
    bench.near = Boolean(view && view.value);
    const show = (step) => {
      bench.step = step - 1;
      slider.value = step;
      slider.setAttribute("aria-valuetext", `${time[step - 1].toFixed(1)} seconds`);
      output.textContent = `${time[step - 1].toFixed(1)} s`;
      clouds.forEach((div) => drawn.has(div) && div.showStep(step - 1));
    };
    const stop = () => {
      clearTimeout(timer);
      timer = null;
      button.textContent = "Play";
    };
    const onwards = () => {
      const step = Number(slider.value);
      if (step >= Number(slider.max)) return stop();
      show(step + 1);
      const seconds = time[Math.min(step + 1, time.length - 1)] - time[step] || 0.1;
      timer = setTimeout(onwards, (1000 * seconds) / Number(speed.value));
    };
    slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
    view?.addEventListener("change", () => {
      bench.near = Boolean(view.value);
      show(bench.step + 1);
    });
    button.addEventListener("click", () => {
      if (timer) return stop();
      if (Number(slider.value) >= Number(slider.max)) show(1);
      button.textContent = "Pause";
      timer = setTimeout(onwards, 0);
    });
    show(1);
  }

  for (const select of document.querySelectorAll("select[data-benchmark]")) {
    select.addEventListener("change", () => {
      draw(document.querySelector(`.plot[data-kind=sweep][data-benchmark="${select.dataset.benchmark}"]`));
    });
  }

  // Benchmarks are tabs, of which the address names one.
  const tabs = [...document.querySelectorAll(".tab")];
  const choose = () => {
    const wanted = decodeURIComponent(location.hash.slice(1));
    const chosen = tabs.find((tab) => tab.hash === `#${wanted}`) || tabs[0];
    for (const tab of tabs) {
      const here = tab === chosen;
      if (here) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
      document.getElementById(decodeURIComponent(tab.hash.slice(1)))
        .classList.toggle("aside", !here);
    }
  };
  if (tabs.length) {
    choose();
    addEventListener("hashchange", () => { choose(); scrollTo(0, 0); });
  }

  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const column = head.cellIndex;
      const up = head.getAttribute("aria-sort") !== "ascending";
      head.parentElement.querySelectorAll("th").forEach((th) => th.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = head.closest("table").tBodies[0];
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...body.rows].sort((a, b) => {
        const [p, q] = [value(a), value(b)];
        if (p === "" || q === "") return (p === "") - (q === "");
        const order = column === 0 ? p.localeCompare(q) : Number(p) - Number(q);
        return up ? order : -order;
      });
      body.append(...rows);
    });
  }
})();
