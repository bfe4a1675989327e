/** Help for an option under the pointer, on the lines `%%tcompile ...`, `%tcompile on ...` and `# tcompile: ...`. */

import { hoverTooltip, Tooltip } from '@codemirror/view';
import { EditorExtensionRegistry, IEditorExtensionFactory } from '@jupyterlab/codemirror';

import { h } from '../dom';
import catalogue from '../options.json';
import { t } from '../texts';

interface Option {
  name: string;
  help: string;
  values: string[];
  flag: boolean;
}

const LINE = /^\s*(?:%%tcompile|%tcompile\s+on|#\s*tcompile:)(.*)$/;

/** The option that column `at` of a line lies in, or null. */
export function optionAt(line: string, at: number): Option | null {
  const found = LINE.exec(line);
  if (!found) {
    return null;
  }
  for (const word of line.matchAll(/\S+/g)) {
    if (word.index! <= at && at <= word.index! + word[0].length && word.index! >= line.length - found[1].length) {
      const name = word[0].replace(/^-+/, '').replace(/=.*$/, '').replace(/-/g, '_');
      const options = catalogue as Option[];
      return options.find(o => o.name === name) ?? options.find(o => o.flag && `no_${o.name}` === name) ?? null;
    }
  }
  return null;
}

export function helpExtension(): IEditorExtensionFactory<any> {
  return {
    name: 'tcompile-lab:help',
    default: true,
    factory: options => {
      if (!options.inline) {
        return null;
      }
      return EditorExtensionRegistry.createConditionalExtension([
        hoverTooltip((view, pos): Tooltip | null => {
          const line = view.state.doc.lineAt(pos);
          const option = optionAt(line.text, pos - line.from);
          return (
            option && {
              pos,
              above: false,
              create: () => ({
                dom: h(
                  'div.tc-option-help',
                  null,
                  h('strong', null, option.name),
                  h('span', null, t(option.help)),
                  option.values.length ? h('code', null, option.values.join(' · ')) : null
                )
              })
            }
          );
        })
      ]);
    }
  };
}
