/** Line and point plots: by plotly, loaded when the first one is shown; by SVG where it cannot be loaded. */

import { h, svg } from './dom';
import { onThemeChange, readTheme, Theme } from './theme';

export interface Series {
  name: string;
  x: number[];
  y: number[];
  /** A custom property of the report's element that holds the colour. */
  colour: string;
  dashed?: boolean;
  points?: boolean;
  /** Hover words of each point. */
  text?: string[];
  /** Names that stand beside the points. */
  labels?: string[];
}

export interface PlotOptions {
  label: string;
  xTitle: string;
  yTitle: string;
  xFormat: (value: number) => string;
  yFormat: (value: number) => string;
  logX?: boolean;
  logY?: boolean;
  /** Names under the x axis for whole numbers. */
  xNames?: string[];
}

type Plotly = {
  newPlot: (...a: any[]) => Promise<any>;
  react: (...a: any[]) => Promise<any>;
  purge: (e: Element) => void;
  Plots: { resize: (e: Element) => void };
};
let loading: Promise<Plotly> | null = null;

function loadPlotly(): Promise<Plotly> {
  loading ??= import('plotly.js-basic-dist-min').then((m: any) => m.default ?? m);
  return loading;
}

/** Powers of ten that have room beside an axis. */
const MOST_DECADES = 9;

function ticks(values: number[], log: boolean): number[] {
  const finite = values.filter(v => isFinite(v) && (!log || v > 0));
  const lo = Math.min(...finite);
  const hi = Math.max(...finite);
  if (log) {
    const out: number[] = [];
    const [from, to] = [Math.floor(Math.log10(lo)), Math.ceil(Math.log10(hi))];
    for (let e = from; e <= to; e += Math.ceil((to - from + 1) / MOST_DECADES)) {
      out.push(10 ** e);
    }
    return out;
  }
  const span = hi - lo || hi || 1;
  const step = 10 ** Math.floor(Math.log10(span / 4));
  const nice = [1, 2, 5].map(m => m * step).find(s => (hi - lo) / s <= 5) ?? step * 10;
  const out: number[] = [];
  for (let v = Math.floor(lo / nice) * nice; v <= hi + nice * 0.5; v += nice) {
    out.push(v);
  }
  return out;
}

/**
 * Where a name may stand beside its point, the best first: the plot's own word for it, and the corner of the text seen
 * from the point.
 */
const SIDES: [string, number, number][] = [
  ['middle right', 0, -0.5],
  ['bottom right', 0, 0],
  ['top right', 0, -1],
  ['middle left', -1, -0.5],
  ['bottom left', -1, 0],
  ['top left', -1, -1],
  ['bottom center', -0.5, 0],
  ['top center', -0.5, -1]
];

/**
 * For each label of points at pixels (x, y) the side on which it covers least of the other labels and points, within
 * `width` by `height`.
 */
export function labelSides(points: { x: number; y: number; text: string }[], width: number, height: number): number[] {
  const [gap, line, letter] = [7, 13, 6];
  const taken = points.map(p => ({ l: p.x - 5, r: p.x + 5, t: p.y - 5, b: p.y + 5 }));
  return points.map((p, k) => {
    const box = ([, dx, dy]: (typeof SIDES)[number]) => {
      const l = p.x + dx * p.text.length * letter + gap * (dx === 0 ? 1 : dx === -1 ? -1 : 0);
      const top = p.y + dy * line + (dx === -0.5 ? gap * (dy === 0 ? 1 : -1) : 0);
      return { l, r: l + p.text.length * letter, t: top, b: top + line };
    };
    const cost = (a: ReturnType<typeof box>) =>
      (a.l < 0 || a.r > width || a.t < 0 || a.b > height ? 2 : 0) +
      taken.filter((b, i) => i !== k && a.l < b.r && b.l < a.r && a.t < b.b && b.t < a.b).length;
    const costs = SIDES.map(side => cost(box(side)));
    const best = costs.indexOf(Math.min(...costs));
    taken.push(box(SIDES[best]));
    return best;
  });
}

/** An element with the plot; `dispose` frees it. */
export function plot(series: Series[], options: PlotOptions): { element: HTMLElement; dispose: () => void } {
  const host = h('div.tc-plot', { role: 'img', 'aria-label': options.label });
  let stop = () => undefined as void;
  let gone = false;
  let drawn: Plotly | null = null;
  const colours = (theme: Theme) => {
    const style = getComputedStyle(host);
    return series.map(s => style.getPropertyValue(s.colour).trim() || theme.accent);
  };

  const axis = (
    theme: Theme,
    values: number[],
    title: string,
    log: boolean,
    format: (v: number) => string,
    names?: string[]
  ) => {
    const at = names ? names.map((_, i) => i) : ticks(values, log);
    return {
      title: { text: title, font: { size: 11, color: theme.muted }, standoff: 8 },
      type: log ? 'log' : 'linear',
      tickvals: at,
      ticktext: names ?? at.map(format),
      color: theme.muted,
      gridcolor: theme.border,
      linecolor: theme.border,
      zeroline: false,
      tickfont: { size: 10 },
      automargin: true,
      ...(names ? { range: [-0.6, names.length - 0.4] } : {})
    };
  };

  const sides = (s: Series): number[] => {
    const [width, height] = [Math.max(160, host.clientWidth - 68), Math.max(120, host.clientHeight - 68)];
    const at = (values: number[], all: number[], log: boolean | undefined, size: number) => {
      const f = (v: number) => (log ? Math.log10(v) : v);
      const [lo, hi] = [Math.min(...all.map(f)), Math.max(...all.map(f))];
      return values.map(v => ((f(v) - lo) / (hi - lo || 1)) * size);
    };
    const x = at(
      s.x,
      series.flatMap(o => o.x),
      options.logX,
      width
    );
    const y = at(
      s.y,
      series.flatMap(o => o.y),
      options.logY,
      height
    );
    return labelSides(
      s.labels!.map((text, k) => ({ text, x: x[k], y: height - y[k] })),
      width,
      height
    );
  };

  const draw = (plotly: Plotly) => {
    const theme = readTheme(host);
    const paint = colours(theme);
    const data = series.map((s, i) => ({
      type: 'scatter',
      mode: s.labels ? 'markers+text' : s.points ? 'markers' : 'lines',
      name: s.name,
      x: s.x,
      y: s.y,
      text: s.labels,
      hovertext:
        s.text ??
        s.x.map(
          (_, k) => `${s.name}<br>${options.xNames ? '' : options.xFormat(s.x[k]) + ', '}${options.yFormat(s.y[k])}`
        ),
      hoverinfo: 'text',
      textposition: s.labels ? sides(s).map(side => SIDES[side][0]) : undefined,
      textfont: { size: 10, color: theme.text },
      cliponaxis: false,
      marker: { color: paint[i], size: s.labels ? 8 : 5, opacity: s.labels ? 0.9 : 0.6 },
      line: { color: paint[i], width: 2, dash: s.dashed ? 'dot' : 'solid' }
    }));
    const layout = {
      margin: { l: 56, r: 12, t: 8, b: 40 },
      paper_bgcolor: 'rgba(0,0,0,0)',
      plot_bgcolor: 'rgba(0,0,0,0)',
      autosize: true,
      font: { family: theme.font, color: theme.text, size: 11 },
      hovermode: 'closest',
      hoverlabel: { bgcolor: theme.raised, bordercolor: theme.border, font: { color: theme.text } },
      showlegend: !options.xNames,
      legend: { orientation: 'h', y: 1.12, x: 0, font: { size: 11 } },
      xaxis: axis(
        theme,
        series.flatMap(s => s.x),
        options.xTitle,
        !!options.logX,
        options.xFormat,
        options.xNames
      ),
      yaxis: axis(
        theme,
        series.flatMap(s => s.y),
        options.yTitle,
        !!options.logY,
        options.yFormat
      )
    };
    const config = { displayModeBar: false, responsive: true, displaylogo: false };
    return drawn ? plotly.react(host, data, layout, config) : plotly.newPlot(host, data, layout, config);
  };

  loadPlotly()
    .then(async plotly => {
      if (gone) {
        return;
      }
      // Laid out only once it is in the document; the element may still be on its way there.
      await new Promise(resolve => requestAnimationFrame(resolve));
      if (gone) {
        return;
      }
      await draw(plotly);
      drawn = plotly;
      host.classList.add('tc-plotly');
      const unfollow = onThemeChange(() => requestAnimationFrame(() => void draw(plotly)));
      // A side panel that opens makes the room smaller, and the window keeps its size.
      let width = host.clientWidth;
      const room = new ResizeObserver(() => {
        if (host.clientWidth && host.clientWidth !== width) {
          width = host.clientWidth;
          plotly.Plots.resize(host);
        }
      });
      room.observe(host);
      stop = () => {
        unfollow();
        room.disconnect();
      };
    })
    .catch(error => {
      console.debug('tcompile: plotly did not load, drawing with SVG', error);
      if (!gone) {
        host.classList.add('tc-drawn');
        host.replaceChildren(svgPlot(series, options));
      }
    });
  return {
    element: host,
    dispose: () => {
      gone = true;
      stop();
      drawn?.purge(host);
    }
  };
}

/** The same plot in SVG, at a fixed size that scales. */
export function svgPlot(series: Series[], options: PlotOptions): SVGElement {
  const longest = Math.max(
    ...ticks(
      series.flatMap(s => s.y),
      !!options.logY
    ).map(v => options.yFormat(v).length)
  );
  const [W, H, L, B, T, R] = [560, 240, Math.max(40, 14 + 6.5 * longest), 40, 24, 22];
  const scale = (values: number[], log: boolean, from: number, to: number) => {
    const f = (v: number) => (log ? Math.log10(Math.max(v, Number.MIN_VALUE)) : v);
    const marks = ticks(values, log);
    const lo = Math.min(...marks.map(f), ...values.map(f));
    const hi = Math.max(...marks.map(f), ...values.map(f));
    return { at: (v: number) => from + ((f(v) - lo) / (hi - lo || 1)) * (to - from), marks };
  };
  const x = scale(
    options.xNames ? [-0.6, options.xNames.length - 0.4] : series.flatMap(s => s.x),
    !!options.logX,
    L,
    W - R
  );
  const y = scale(
    series.flatMap(s => s.y),
    !!options.logY,
    H - B,
    T
  );
  const xMarks = options.xNames ? options.xNames.map((_, i) => i) : x.marks;
  return svg(
    'svg.tc-svg-plot',
    { viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': options.label },
    y.marks.map(v => [
      svg('line.tc-grid', { x1: L, x2: W - R, y1: y.at(v), y2: y.at(v) }),
      svg('text.tc-tick', { x: L - 6, y: y.at(v) + 3, 'text-anchor': 'end' }, options.yFormat(v))
    ]),
    xMarks.map((v, i) =>
      svg(
        'text.tc-tick',
        { x: x.at(v), y: H - B + 14, 'text-anchor': 'middle' },
        options.xNames?.[i] ?? options.xFormat(v)
      )
    ),
    svg('text.tc-tick', { x: (L + W) / 2, y: H - 6, 'text-anchor': 'middle' }, options.xTitle),
    series.map((s, i) => [
      s.points
        ? s.x.map((v, k) =>
            svg('circle', {
              cx: x.at(v),
              cy: y.at(s.y[k]),
              r: s.labels ? 4 : 2.5,
              opacity: s.labels ? 0.9 : 0.6,
              style: { fill: `var(${s.colour})` }
            })
          )
        : svg('polyline', {
            points: s.x.map((v, k) => `${x.at(v)},${y.at(s.y[k])}`).join(' '),
            fill: 'none',
            'stroke-width': 2,
            'stroke-dasharray': s.dashed ? '4 3' : null,
            style: { stroke: `var(${s.colour})` }
          }),
      s.labels
        ? labelSides(
            s.labels.map((text, k) => ({ text, x: x.at(s.x[k]), y: y.at(s.y[k]) })),
            W,
            H
          ).map((side, k) => {
            const [, dx, dy] = SIDES[side];
            return svg(
              'text.tc-tick',
              {
                x: x.at(s.x[k]) + (dx === 0 ? 7 : dx === -1 ? -7 : 0),
                y: y.at(s.y[k]) + (dy + 0.5) * 13 + 3.5 + (dx === -0.5 ? (dy === 0 ? 7 : -7) : 0),
                'text-anchor': dx === 0 ? 'start' : dx === -1 ? 'end' : 'middle'
              },
              s.labels![k]
            );
          })
        : null,
      options.xNames
        ? null
        : [
            svg('rect', { x: L + i * 130, y: 4, width: 9, height: 9, style: { fill: `var(${s.colour})` } }),
            svg('text.tc-tick', { x: L + i * 130 + 14, y: 12 }, s.name)
          ]
    ])
  );
}
