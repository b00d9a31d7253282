"use strict";
// Draws the plots of a page of estimates, and moves all of them to one time.
(async () => {
  const content = JSON.parse(await unpacked("plots"));
  (0, eval)(await unpacked("plotly"));
  const { arrays, now } = content;
  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const plots = [...document.querySelectorAll(".plot")];
  const overTime = plots.filter((div) => content.plots[div.dataset.plot].kind === "time");
  const map = plots.find((div) => content.plots[div.dataset.plot].kind === "map");
  const numbers = (place) => arrays[place];
  const marker = (layout) => (layout.shapes || []).length;

  for (const div of plots) {
    const { data, layout, settings, kind } = content.plots[div.dataset.plot];
    const lines = data.map((line) => ({ ...line, x: numbers(line.x), y: numbers(line.y) }));
    if (kind === "map") {
      const look = { hoverinfo: "skip", showlegend: false, mode: "lines" };
      lines.push({ x: [], y: [], ...look, line: { color: css("--alarm"), width: 3 } });
      lines.push({ x: [], y: [], ...look, mode: "markers", marker: { color: css("--alarm"), size: 9 } });
    } else {
      div.cursor = marker(layout);
      const line = { color: css("--alarm"), width: 1.5 };
      layout.shapes = [...(layout.shapes || []),
        { type: "line", xref: "x", yref: "paper", x0: 0, x1: 0, y0: 0, y1: 1, line, visible: false }];
    }
    await Plotly.newPlot(div, lines, layout, settings);
  }

  // The plots take on the page's colours, light or dark, and change with them.
  const paint = () => {
    for (const div of plots) {
      const change = { "font.color": css("--ink") };
      for (const axis of Object.keys(div.layout).filter((key) => /^[xy]axis/.test(key))) {
        change[axis + ".gridcolor"] = change[axis + ".zerolinecolor"] = css("--line");
      }
      Plotly.relayout(div, change);
    }
  };
  paint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);

  // One time for all plots.
  const slider = document.querySelector(".player input");
  const output = document.querySelector(".player output");
  const time = numbers(now.time);
  const means = now.means.map(numbers);
  const stds = now.stds.map(numbers);
  const ellipse = now.place && now.place.cov.map(numbers);
  const words = (value) => (value === null ? "–" : Number(value.toPrecision(4)).toString());
  const outline = (k) => {
    const [xx, xy, yy] = ellipse.map((part) => part[k]);
    const [x, y] = now.place.states.map((i) => means[i][k]);
    // By Cholesky: any root of the covariance turns a circle into the ellipse.
    const a = Math.sqrt(Math.max(xx, 0));
    const b = a ? xy / a : 0;
    const c = Math.sqrt(Math.max(yy - b * b, 0));
    const around = Array.from({ length: 49 }, (_, i) => (i * Math.PI) / 24);
    const r = now.place.radius;
    return [
      around.map((t) => x + r * a * Math.cos(t)),
      around.map((t) => y + r * (b * Math.cos(t) + c * Math.sin(t))),
    ];
  };
  let wanted = null;
  const show = () => {
    const k = wanted;
    wanted = null;
    slider.value = k;
    const told = now.names.map((name, i) => `${name} ${words(means[i][k])} ± ${words(stds[i][k])}`);
    output.textContent = [`time ${time[k]}`, ...told].join(" · ");
    slider.setAttribute("aria-valuetext", `time ${time[k]}`);
    for (const div of overTime) {
      const shape = `shapes[${div.cursor}]`;
      Plotly.relayout(div, {
        [shape + ".x0"]: time[k], [shape + ".x1"]: time[k], [shape + ".visible"]: true,
      });
    }
    if (map) {
      const [x, y] = outline(k);
      const [px, py] = now.place.states.map((i) => means[i][k]);
      const last = map.data.length - 1;
      Plotly.restyle(map, { x: [x, [px]], y: [y, [py]] }, [last - 1, last]);
    }
  };
  const go = (k) => {
    if (wanted === null) requestAnimationFrame(show);
    wanted = k;
  };
  slider.addEventListener("input", () => go(Number(slider.value)));

  const nearest = (t) => {
    let [low, high] = [0, time.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (time[middle] <= t) low = middle;
      else high = middle;
    }
    return t - time[low] < time[high] - t ? low : high;
  };
  // What is zoomed in one is zoomed in all; what is pointed at in one is marked in all.
  let zooming = false;
  for (const div of overTime) {
    div.on("plotly_hover", (event) => go(nearest(event.points[0].x)));
    div.on("plotly_relayout", (change) => {
      const key = Object.keys(change).find((name) => /^xaxis\d*\.(range|autorange)/.test(name));
      if (zooming || !key) return;
      const axis = key.split(".")[0];
      const zoomed = /autorange/.test(key)
        ? { "xaxis.autorange": true }
        : { "xaxis.range": [...div.layout[axis].range] };
      zooming = true;
      Promise.all(overTime.filter((other) => other !== div).map((other) => Plotly.relayout(other, zoomed)))
        .finally(() => { zooming = false; });
    });
  }

  // On paper in the light colours, as wide as the paper.
  const paper = (begins) => {
    root.classList.toggle("paper", begins);
    paint();
    for (const div of plots) {
      Plotly.relayout(div, begins ? { width: 680, autosize: false } : { width: null, autosize: true });
    }
  };
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
  root.dataset.ready = "yes";
})();
