/** How a cell asks to be compiled: `%%tcompile ...` or `# tcompile: ...` on top of it, read and written as text. */

const MAGIC = /^\s*%%tcompile\b(.*)$/;
const COMMENT = /^\s*#\s*tcompile:\s*(.*?)\s*$/;

export interface Request {
  form: 'magic' | 'comment';
  line: number;
  options: string;
}

/** The request of a cell's text, or null. A comment counts among the comments that begin the cell. */
export function requestOf(text: string): Request | null {
  const lines = text.split('\n');
  const magic = MAGIC.exec(lines[0] ?? '');
  if (magic) {
    return { form: 'magic', line: 0, options: magic[1].trim() };
  }
  for (let i = 0; i < lines.length; i++) {
    const comment = COMMENT.exec(lines[i]);
    if (comment) {
      return { form: 'comment', line: i, options: comment[1] };
    }
    if (lines[i].trim() && !lines[i].trim().startsWith('#')) {
      return null;
    }
  }
  return null;
}

export function modeOf(options: string): string {
  return /(?:^|\s)(?:--)?mode[=\s]\s*([\w-]+)/.exec(options)?.[1] ?? 'default';
}

/** The text with these options in its request; one is made where there is none. */
export function withSettings(text: string, settings: { [name: string]: any }): string {
  const now = requestOf(text);
  const lines = text.split('\n');
  let options = now?.options ?? '';
  for (const [name, value] of Object.entries(settings)) {
    const given = new RegExp(`(^|\\s)(?:--)?${name}[=\\s]\\s*\\S+`);
    options = given.test(options) ? options.replace(given, `$1${name}=${value}`) : `${options} ${name}=${value}`.trim();
  }
  const line = now?.form === 'magic' ? `%%tcompile ${options}` : `# tcompile: ${options}`;
  return (now ? [...lines.slice(0, now.line), line, ...lines.slice(now.line + 1)] : [line, ...lines]).join('\n');
}

/**
 * The text with the request taken away, or with a comment that asks for `mode`. Other options of a request are kept.
 */
export function withRequest(text: string, mode: string | null): string {
  const lines = text.split('\n');
  const now = requestOf(text);
  if (mode === null) {
    return now ? [...lines.slice(0, now.line), ...lines.slice(now.line + 1)].join('\n') : text;
  }
  if (!now) {
    return [`# tcompile: mode=${mode}`, text].join('\n');
  }
  const rest = now.options
    .replace(/(?:^|\s)(?:--)?mode[=\s]\s*[\w-]+/, ' ')
    .replace(/\s+/g, ' ')
    .trim();
  const options = [`mode=${mode}`, rest].filter(t => t).join(' ');
  lines[now.line] = now.form === 'magic' ? `%%tcompile ${options}` : `# tcompile: ${options}`;
  return lines.join('\n');
}
