/** Light highlighting of Python, C++ and loop IR, line by line, with the colours of JupyterLab's editor. */

export type Language = 'python' | 'cpp' | 'triton' | 'ir';
type Token = [kind: string, text: string];

const PYTHON_WORDS =
  'and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield match case';
const CPP_WORDS =
  'alignas auto break case const constexpr continue default do else enum extern for goto if inline namespace operator return sizeof static static_cast reinterpret_cast struct switch template typedef typename union using volatile while';
const CPP_TYPES =
  'bool char double float int long short signed unsigned void int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t half bfloat16';
const IR_WORDS =
  'for load store acc where if else in sum max min prod any all welford scan parallel reduce kernel buffer out return';

const words = (text: string) => text.split(' ').join('|');

function rules(...parts: [string, string][]): { expression: RegExp; kinds: string[] } {
  return {
    expression: new RegExp(parts.map(([, source]) => `(${source})`).join('|'), 'gy'),
    kinds: parts.map(([kind]) => kind)
  };
}

const NUMBER = '\\b(?:0[xX][0-9a-fA-F]+|\\d+\\.?\\d*(?:[eE][+-]?\\d+)?)[fFuUlL]*\\b';
const OTHER: [string, string][] = [
  ['', '[A-Za-z_]\\w*'],
  ['', '\\s+'],
  ['operator', '[-+*/%<>=!&|^~?:]+'],
  ['', '[\\s\\S]']
];

const LANGUAGES: { [name: string]: { expression: RegExp; kinds: string[] } } = {
  python: rules(
    ['comment', '#.*'],
    [
      'string',
      '[rbfRBF]{0,2}(?:"""[\\s\\S]*?(?:"""|$)|\'\'\'[\\s\\S]*?(?:\'\'\'|$)|"(?:\\\\.|[^"\\\\])*"?|\'(?:\\\\.|[^\'\\\\])*\'?)'
    ],
    ['meta', '^\\s*%{1,2}\\w.*|@\\w+'],
    ['keyword', `\\b(?:${words(PYTHON_WORDS)})\\b`],
    ['atom', '\\b(?:None|True|False|self)\\b'],
    ['number', NUMBER],
    ['call', '\\b[A-Za-z_]\\w*(?=\\()'],
    ...OTHER
  ),
  cpp: rules(
    ['comment', '//.*|/\\*[\\s\\S]*?(?:\\*/|$)'],
    ['meta', '^\\s*#.*'],
    ['string', '"(?:\\\\.|[^"\\\\])*"?|\'(?:\\\\.|[^\'\\\\])*\'?'],
    ['keyword', `\\b(?:${words(CPP_WORDS)})\\b`],
    ['type', `\\b(?:${words(CPP_TYPES)}|v\\d+[a-z]\\w*)\\b|__\\w+`],
    ['number', NUMBER],
    ['call', '\\b[A-Za-z_]\\w*(?=\\()'],
    ...OTHER
  ),
  ir: rules(
    ['comment', '(?:#|//).*'],
    ['atom', '%\\w+'],
    ['keyword', `\\b(?:${words(IR_WORDS)})\\b`],
    ['type', '\\b(?:f16|bf16|f32|f64|i8|i16|i32|i64|u8|bool|float32|float64|float16|bfloat16|int64|int32)\\b'],
    ['number', NUMBER],
    ['call', '\\b[A-Za-z_]\\w*(?=\\()'],
    ...OTHER
  )
};

export function tokenize(line: string, language: Language): Token[] {
  const { expression, kinds } = LANGUAGES[language === 'triton' ? 'python' : language];
  const tokens: Token[] = [];
  expression.lastIndex = 0;
  for (let match = expression.exec(line); match && match[0]; match = expression.exec(line)) {
    const kind = kinds[match.slice(1).findIndex(group => group !== undefined)];
    const last = tokens[tokens.length - 1];
    if (last && last[0] === kind) {
      last[1] += match[0];
    } else {
      tokens.push([kind, match[0]]);
    }
  }
  return tokens;
}

/** Appends the line's spans to `element`. Generated lines can be very long: those stay plain. */
export function highlightInto(element: Element, line: string, language: Language): void {
  if (line.length > 2000) {
    element.textContent = line;
    return;
  }
  for (const [kind, text] of tokenize(line, language)) {
    if (kind) {
      const span = document.createElement('span');
      span.className = `tc-t-${kind}`;
      span.textContent = text;
      element.appendChild(span);
    } else {
      element.appendChild(document.createTextNode(text));
    }
  }
}
