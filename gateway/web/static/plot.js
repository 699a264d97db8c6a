// A plot of one range of time, by uPlot, which is loaded when the first plot is shown. Vertical lines are events; a click
// on it chooses a time.

import { useEffect, useRef } from "preact/hooks";
import { html } from "./ui.js";

const HEIGHT = 130;
const HOURS = 6 * 3600; // a longer range has hours at its foot, without seconds
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

/** 24 hours, as all times of the page. */
export const timeOfDay = (unixS) => new Date(unixS * 1000).toLocaleTimeString("sv-SE", { hour: "2-digit", minute: "2-digit" });

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

/** Of several lines in one plot, in their order. */
export const LINES = ["--got", "--short", "--prefill", "--ok", "--dim"];

function options(width, latest, say) {
  const axis = { stroke: resolved("--dim"), grid: { stroke: resolved("--line"), width: 1 }, ticks: { stroke: resolved("--line") } };
  const [event, chosen] = [resolved("--short"), resolved("--due")];
  const lines = (plot) => {
    const at = (unixS) => plot.valToPos(unixS, "x", true);
    const { events, chosen: minute, from, to } = latest.current;
    const draw = (unixS, stroke, wide) => {
      if (unixS < from || unixS > to) return;
      plot.ctx.fillStyle = stroke;
      plot.ctx.fillRect(Math.round(at(unixS)), plot.bbox.top, wide, plot.bbox.height);
    };
    for (const each of events) draw(each.at, event, 2 * devicePixelRatio);
    if (minute !== null) draw(minute, chosen, devicePixelRatio);
  };
  const step = latest.current.to - latest.current.from > HOURS ? [3600, 7200, 10800, 21600] : [60, 300, 600, 900, 1800, 3600];
  return {
    width,
    height: HEIGHT,
    cursor: { y: false, drag: { x: false } },
    legend: { show: false },
    scales: { x: { range: () => [latest.current.from, latest.current.to] }, y: { range: (_, __, most) => [0, (most || 1) * 1.1] } },
    axes: [{ ...axis, space: 70, size: 28, incrs: step, values: (_, splits) => splits.map(timeOfDay) }, { ...axis, size: 64, values: (_, splits) => splits.map(say) }],
    series: [{}, ...latest.current.data.slice(1).map((_, number, all) => ({ stroke: resolved(LINES[number]), fill: all.length > 1 ? undefined : resolved("--track"), width: 1.5, points: { show: false }, spanGaps: false }))],
    hooks: { draw: [lines] },
  };
}

const known = (values) => values.filter((each) => each != null);
const latestOf = (values, say) => (known(values).length ? say(known(values).at(-1)) : "");

/** `lines`: {name, values} each, at most as many as LINES; of one alone the label is its name. times and values: one of
 * each step, null where nothing was recorded. `say` shows a value with its unit; `events` have `at`, as `chosen` is a time
 * or null. `onTime(unixS)` is called at a click.
 */
export function Plot({ label, times, lines, from, to, events = [], chosen = null, say, onTime }) {
  const place = useRef(null);
  const plot = useRef(null);
  const latest = useRef(null);
  latest.current = { data: [times, ...lines.map(({ values }) => values)], events, chosen, from, to, onTime };
  useEffect(() => {
    const parent = place.current;
    let isGone = false;
    let watch = null;
    load().then((uPlot) => {
      if (isGone || parent === null || !parent.isConnected) return; // the view has changed meanwhile
      const width = () => Math.max(200, parent.clientWidth);
      plot.current = new uPlot(options(width(), latest, say), latest.current.data, parent);
      plot.current.over.addEventListener("click", (event) => {
        latest.current.onTime?.(plot.current.posToVal(event.clientX - plot.current.over.getBoundingClientRect().left, "x"));
      });
      watch = new ResizeObserver(() => plot.current?.setSize({ width: width(), height: HEIGHT }));
      watch.observe(parent);
    });
    return () => {
      isGone = true;
      watch?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [label, lines.map(({ name }) => name).join("\n"), to - from, document.documentElement.dataset.theme]);
  useEffect(() => plot.current?.setData(latest.current.data), [to, lines, chosen, events.length]);
  const isOne = lines.length === 1 && lines[0].name === label;
  const said = lines.map(({ name, values }) => `${isOne ? "" : `${name}: `}${known(values).length === 0 ? "nothing was recorded" : `last ${latestOf(values, say)}, at most ${say(Math.max(...known(values)))}`}`);
  return html`<figure class="plot"><figcaption>${label} ${isOne ? html`<span class="number">${latestOf(lines[0].values, say)}</span>`
      : html`<span class="legend">${lines.map(({ name, values }, number) => html`<span key=${name}><i style=${{ background: `var(${LINES[number]})` }} aria-hidden="true"></i>${name} <span class="number">${latestOf(values, say)}</span></span>`)}</span>`}</figcaption>
    <div ref=${place} role="img" aria-label=${`${label}: ${said.join("; ")}`}></div></figure>`;
}
