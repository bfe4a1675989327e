/**
 * Writes texts/tcompile.pot: every English text of the sources, for translators. `--check` only compares, and fails where the file is old.
 *
 * A text is the first argument of `t`, the first two of `tn`, the words of `plural`, a value in `words({...})`, or the help of an option.
 */

import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const home = path.join(path.dirname(fileURLToPath(import.meta.url)), '..');
const target = path.join(home, 'texts', 'tcompile.pot');
const found = new Map(); // text -> { many, files }

function add(text, file, many = '') {
  text = text.trim();
  if (!/\p{L}/u.test(text)) {
    return;
  }
  const entry = found.get(text) ?? { many, files: new Set() };
  entry.many ||= many;
  entry.files.add(file);
  found.set(text, entry);
}

const literal = node =>
  node && (ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node)) ? node.text : null;

function visit(node, file) {
  if (ts.isCallExpression(node) && ts.isIdentifier(node.expression)) {
    const [first, second, third] = node.arguments;
    const name = node.expression.text;
    if (name === 't' && literal(first) !== null) {
      add(literal(first), file);
    } else if (name === 'tn') {
      add(literal(first) ?? '', file, literal(second) ?? '');
    } else if (name === 'plural' && literal(second) !== null) {
      add(`{0} ${literal(second)}`, file, `{0} ${literal(third) ?? literal(second) + 's'}`);
    } else if (name === 'words' && first && ts.isObjectLiteralExpression(first)) {
      first.properties.forEach(p => add(literal(p.initializer) ?? '', file));
    }
  }
  ts.forEachChild(node, child => visit(child, file));
}

function walk(folder) {
  for (const name of fs.readdirSync(folder).sort()) {
    const full = path.join(folder, name);
    if (fs.statSync(full).isDirectory()) {
      walk(full);
    } else if (name.endsWith('.ts')) {
      const file = path.relative(home, full);
      visit(ts.createSourceFile(file, fs.readFileSync(full, 'utf8'), ts.ScriptTarget.ES2022, true), file);
    }
  }
}

walk(path.join(home, 'src'));
for (const option of JSON.parse(fs.readFileSync(path.join(home, 'src', 'options.json'), 'utf8'))) {
  add(option.help, 'src/options.json');
}

const quote = text => JSON.stringify(text);
const entries = [...found]
  .sort(([a], [b]) => (a < b ? -1 : 1))
  .map(([text, { many, files }]) =>
    [
      `#: ${[...files].join(' ')}`,
      `msgid ${quote(text)}`,
      ...(many ? [`msgid_plural ${quote(many)}`, 'msgstr[0] ""', 'msgstr[1] ""'] : ['msgstr ""'])
    ].join('\n')
  );
const text = ['msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"', ...entries].join('\n\n') + '\n';

if (process.argv.includes('--check')) {
  if (!fs.existsSync(target) || fs.readFileSync(target, 'utf8') !== text) {
    console.error('texts/tcompile.pot is not what the sources say: run `jlpm texts` and commit it');
    process.exit(1);
  }
} else {
  fs.writeFileSync(target, text);
  console.log(`${found.size} texts in ${path.relative(home, target)}`);
}
