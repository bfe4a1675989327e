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
  const font = (name: string) => style.getPropertyValue(name).trim();
  // A custom property reads as it was written (`color-mix(...)`, `light-dark(...)`); what it comes to is known of a
  // colour alone.
  const probe = document.createElement('span');
  probe.hidden = true;
  element.appendChild(probe);
  const [background, surface, raised, text, muted, border, accent, error, eager, tcompile, torch] = [
    'bg',
    'surface',
    'raised',
    'text',
    'muted',
    'border',
    'accent',
    'error',
    'engine-eager',
    'engine-tcompile',
    'engine-torch'
  ].map(name => {
    probe.style.color = `var(--tc-${name})`;
    return rgba(getComputedStyle(probe).color);
  });
  probe.remove();
  const [r, g, b] = pixel(background);
  return {
    background,
    surface,
    raised,
    text,
    muted,
    border,
    accent,
    error,
    font: font('--tc-font'),
    mono: font('--tc-mono'),
    dark: (0.299 * r + 0.587 * g + 0.114 * b) / 255 < 0.5,
    engines: { eager, tcompile, torch }
  };
}

/** Red, green, blue and alpha of any colour that CSS knows, 0 to 255. */
function pixel(colour: string): Uint8ClampedArray {
  const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  if (!context) {
    return new Uint8ClampedArray([255, 255, 255, 255]);
  }
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data;
}

/** The colour in the one form that plotly reads, too. */
function rgba(colour: string): string {
  const [r, g, b, a] = pixel(colour);
  return `rgba(${r}, ${g}, ${b}, ${Math.round((a / 255) * 1000) / 1000})`;
}

/** Calls back when the page's theme changes. Returns a function that stops it. */
export function onThemeChange(callback: () => void): () => void {
  const observer = new MutationObserver(callback);
  for (const element of [document.documentElement, document.body]) {
    observer.observe(element, {
      attributes: true,
      attributeFilter: ['data-jp-theme-light', 'data-jp-theme-name', 'class', 'theme', 'data-vscode-theme-kind']
    });
  }
  const scheme = window.matchMedia('(prefers-color-scheme: dark)');
  scheme.addEventListener('change', callback);
  return () => {
    observer.disconnect();
    scheme.removeEventListener('change', callback);
  };
}

/** Of kernels. Library calls, guards and Python have others in a profile (188, 285, 45). */
export const HUES = [212, 28, 148, 338, 95, 250, 5, 315];

/** The colour of a kernel: the same in every view. */
export function kernelColour(kernel: number, alpha = 1, dark = false): string {
  return `hsla(${HUES[kernel % HUES.length]}, 62%, ${dark ? 62 : 46}%, ${alpha})`;
}

/** The same hue as text: as light or dark as it has to be to read on the theme's ground (a contrast of 4.5). */
export function kernelText(kernel: number, dark: boolean): string {
  const hue = HUES[kernel % HUES.length];
  const ground = dark ? luminance(0, 0, 0.12) : 1;
  for (let lightness = dark ? 62 : 46; lightness > 10 && lightness < 95; lightness += dark ? 2 : -2) {
    const [high, low] = [luminance(hue, 0.62, lightness / 100), ground].sort((a, b) => b - a);
    if ((high + 0.05) / (low + 0.05) >= 4.6) {
      return `hsl(${hue}, 62%, ${lightness}%)`;
    }
  }
  return dark ? '#fff' : '#000';
}

/** WCAG's relative luminance of a colour in HSL. */
function luminance(hue: number, saturation: number, lightness: number): number {
  const a = saturation * Math.min(lightness, 1 - lightness);
  const channel = (n: number) => {
    const k = (n + hue / 30) % 12;
    const c = lightness - a * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * channel(0) + 0.7152 * channel(8) + 0.0722 * channel(4);
}

/** Opaque companions of a kernel's colour, for areas: overlapping parts of one outline must not add up. */
export function kernelTint(kernel: number, part: 'outline' | 'ground', dark: boolean): string {
  const [saturation, lightness] = part === 'outline' ? (dark ? [35, 38] : [55, 78]) : dark ? [30, 17] : [70, 95];
  return `hsl(${HUES[kernel % HUES.length]}, ${saturation}%, ${lightness}%)`;
}
