/**
 * Marks in the gutter of a cell's editor. `store` holds them by cell (lab/outputs.ts puts them there). A mark is shown
 * while its line reads as it did when it was compiled; editing the line takes the mark away.
 */

import { RangeSet, RangeSetBuilder, StateEffect, StateField } from '@codemirror/state';
import { EditorView, gutter, GutterMarker, ViewPlugin } from '@codemirror/view';
import { EditorExtensionRegistry, IEditorExtensionFactory } from '@jupyterlab/codemirror';

import { markElement, marksByLine } from '../listing';
import { Mark } from '../schema';
import { openPlace } from './host';

/** A mark with what is needed to place it and to follow it back. */
export interface PlacedMark extends Mark {
  report: string;
  /** What the line read when it was compiled, where the report tells. */
  code?: string;
}

class MarksStore {
  private marks = new WeakMap<object, PlacedMark[]>();
  private views = new WeakMap<object, Set<EditorView>>();

  get(model: object): PlacedMark[] {
    return this.marks.get(model) ?? [];
  }

  set(model: object, marks: PlacedMark[]): void {
    if (!marks.length && !this.get(model).length) {
      return;
    }
    this.marks.set(model, marks);
    this.views.get(model)?.forEach(view => view.dispatch({ effects: setMarks.of(marks) }));
  }

  attach(model: object, view: EditorView): () => void {
    let views = this.views.get(model);
    if (!views) {
      this.views.set(model, (views = new Set()));
    }
    views.add(view);
    return () => views!.delete(view);
  }
}

/** By cell model: an editor that is made later, when its cell scrolls into view, finds its marks here. */
export const store = new MarksStore();

class LineMarker extends GutterMarker {
  constructor(private marks: PlacedMark[]) {
    super();
  }

  eq(other: LineMarker): boolean {
    return (
      other.marks.length === this.marks.length &&
      other.marks.every((m, i) => m.text === this.marks[i].text && m.kind === this.marks[i].kind)
    );
  }

  toDOM(): Node {
    const element = markElement(this.marks);
    const target = this.marks.find(m => m.ref);
    if (target) {
      element.dataset.ref = target.ref;
      element.dataset.report = target.report;
      element.classList.add('tc-mark-link');
    }
    return element;
  }
}

const setMarks = StateEffect.define<PlacedMark[]>();

const field = StateField.define<RangeSet<LineMarker>>({
  create: () => RangeSet.empty,
  update(value, transaction) {
    for (const effect of transaction.effects) {
      if (effect.is(setMarks)) {
        const builder = new RangeSetBuilder<LineMarker>();
        const { doc } = transaction.state;
        const lines = marksByLine(effect.value) as Map<number, PlacedMark[]>;
        for (const number of [...lines.keys()].sort((a, b) => a - b)) {
          if (number < 1 || number > doc.lines) {
            continue;
          }
          const line = doc.line(number);
          const fresh = lines
            .get(number)!
            .filter(m => m.code === undefined || m.line !== number || m.code === line.text);
          if (fresh.length) {
            builder.add(line.from, line.from, new LineMarker(fresh));
          }
        }
        return builder.finish();
      }
    }
    if (!transaction.docChanged || !value.size) {
      return value;
    }
    // Shift with the text; a line that was itself edited loses its mark.
    const touched = new Set<number>();
    transaction.changes.iterChangedRanges((from, to) => {
      const { doc } = transaction.startState;
      for (let n = doc.lineAt(from).number; n <= doc.lineAt(to).number; n++) {
        touched.add(doc.line(n).from);
      }
    });
    return value.update({ filter: from => !touched.has(from) }).map(transaction.changes);
  }
});

export function marksExtension(): IEditorExtensionFactory<any> {
  return {
    name: 'tcompile-lab:marks',
    default: true,
    factory: options => {
      if (!options.inline) {
        return null; // not a cell
      }
      const follow = ViewPlugin.define(view => {
        const stop = store.attach(options.model, view);
        const marks = store.get(options.model);
        if (marks.length) {
          queueMicrotask(() => view.dispatch({ effects: setMarks.of(marks) }));
        }
        return { destroy: () => void stop() };
      });
      return EditorExtensionRegistry.createConditionalExtension([
        field,
        follow,
        gutter({
          class: 'tc-cm-gutter',
          markers: view => view.state.field(field),
          domEventHandlers: { click: (_view, _line, event) => openReport(event.target as HTMLElement) }
        })
      ]);
    }
  };
}

function openReport(target: HTMLElement): boolean {
  const mark = target.closest<HTMLElement>('[data-ref]');
  return mark !== null && openPlace(mark, mark.dataset.report ?? '', mark.dataset.ref ?? '');
}
