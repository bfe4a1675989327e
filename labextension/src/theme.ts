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
  // A custom property reads as it was written (`color-mix(...)`, `light-dark(...)`); what it comes to is known of a colour alone.
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
