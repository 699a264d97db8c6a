// A plot of the last minutes, by uPlot, which is loaded when the first plot is shown.

import { useEffect, useRef } from "preact/hooks";
import { html } from "./ui.js";

const HEIGHT = 150;
const WHOLE = [1, 10, 100, 1e3, 1e4, 1e5, 1e6].flatMap((each) => [each, 2 * each, 5 * each]); // ticks are whole numbers
const WINDOW_S = 300; // as many seconds as live.js keeps
let loading = null;

function load() {
  if (loading === null) {
    loading = import("uplot").then((module) => module.default);
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = "/web/vendor/uPlot.css";
    document.head.append(style);
  }
  return loading;
}

const timeOfDay = (unixS) => new Date(unixS * 1000).toLocaleTimeString("sv-SE"); // 24 hours, as all times of the page

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** light-dark() as the colour that holds now: canvas knows no such function. */
function resolved(name) {
  const probe = document.createElement("span");
  probe.style.color = colour(name);
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function options(width, label) {
  const axis = { stroke: resolved("--dim"), grid: { stroke: resolved("--line"), width: 1 }, ticks: { stroke: resolved("--line") } };
  return {
    width,
    height: HEIGHT,
    cursor: { y: false },
    legend: { show: false },
    scales: { x: { range: (_, __, last) => [last - WINDOW_S, last] }, y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
    axes: [{ ...axis, space: 80, size: 32, incrs: [60], values: (_, splits) => splits.map(timeOfDay) }, { ...axis, size: 56, incrs: WHOLE }],
    series: [{}, { label, stroke: resolved("--got"), width: 1.5, points: { show: false } }],
  };
}

/** rows: [[unix_s, value], ...]; `label` says what the values are. */
export function Plot({ rows, label }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = [rows.map(([at]) => at), rows.map(([, value]) => value)];
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    let isGone = false;
    let watch = null;
    load().then((uPlot) => {
      if (isGone) return;
      const parent = place.current;
      const width = () => Math.max(200, parent.clientWidth);
      plot.current = new uPlot(options(width(), label), latest.current, parent);
      watch = new ResizeObserver(() => plot.current?.setSize({ width: width(), height: HEIGHT }));
      watch.observe(parent);
    });
    return () => {
      isGone = true;
      watch?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [label, document.documentElement.dataset.theme]);
  useEffect(() => plot.current?.setData(latest.current), [rows, rows.length, rows.at(-1)?.[0]]);
  const values = data[1];
  const said = values.length === 0 ? "nothing yet" : `now ${Math.round(values.at(-1))}, at most ${Math.round(Math.max(...values))}`;
  return html`<figure class="plot"><figcaption>${label}, last 5 min</figcaption>
    <div ref=${place} role="img" aria-label=${`${label}, last ${rows.length} seconds: ${said}`}></div></figure>`;
}
