/** Colours for what is drawn outside CSS (canvas, plotly): read from the report's own custom properties. */

export interface Theme {
  background: string;
  surface: string;
  raised: string;
  text: string;
  muted: string;
  border: string;
  accent: string;
  error: string;
  font: string;
  mono: string;
  dark: boolean;
  engines: { [name: string]: string };
}

export function readTheme(element: Element): Theme {
  const style = getComputedStyle(element);
  const get = (name: string) => style.getPropertyValue(name).trim();
  const theme = {
    background: get('--tc-bg'), surface: get('--tc-surface'), raised: get('--tc-raised'), text: get('--tc-text'),
    muted: get('--tc-muted'), border: get('--tc-border'), accent: get('--tc-accent'), error: get('--tc-error'),
    font: get('--tc-font'), mono: get('--tc-mono'),
    engines: { eager: get('--tc-engine-eager'), tcompile: get('--tc-engine-tcompile'), torch: get('--tc-engine-torch') }
  };
  return { ...theme, dark: luminance(theme.background) < 0.5 };
}

function luminance(colour: string): number {
  const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  if (!context) {
    return 1;
  }
  context.fillStyle = '#fff';
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b] = context.getImageData(0, 0, 1, 1).data;
  return (0.299 * r + 0.587 * g + 0.114 * b) / 255;
}

/** Calls back when the page's theme changes. Returns a function that stops it. */
export function onThemeChange(callback: () => void): () => void {
  const observer = new MutationObserver(callback);
  for (const element of [document.documentElement, document.body]) {
    observer.observe(element, { attributes: true, attributeFilter: ['data-jp-theme-light', 'data-jp-theme-name', 'class'] });
  }
  return () => observer.disconnect();
}

const HUES = [212, 28, 148, 282, 338, 178, 48, 250];

/** The colour of a kernel: the same in every view. */
export function kernelColour(kernel: number, alpha = 1, dark = false): string {
  return `hsla(${HUES[kernel % HUES.length]}, 62%, ${dark ? 62 : 46}%, ${alpha})`;
}

/** Opaque companions of a kernel's colour, for areas: overlapping parts of one outline must not add up. */
export function kernelTint(kernel: number, part: 'outline' | 'ground', dark: boolean): string {
  const [saturation, lightness] = part === 'outline' ? (dark ? [35, 38] : [55, 78]) : dark ? [30, 17] : [70, 95];
  return `hsl(${HUES[kernel % HUES.length]}, ${saturation}%, ${lightness}%)`;
}
