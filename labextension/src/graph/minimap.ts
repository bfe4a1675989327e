/** The minimap: a large graph in small, with a frame around what the canvas shows. A press goes there. */
import { kernelColour } from '../theme';
import { GraphCanvas } from './canvas';
import { Layout } from './layout';

/** Graphs of fewer boxes have none. */
const FROM = 200;

export class Minimap {
  readonly element = document.createElement('canvas');
  private image: HTMLCanvasElement | null = null;
  private layout: Layout | null = null;

  constructor(private canvas: GraphCanvas) {
    this.element.className = 'tc-minimap';
    this.element.setAttribute('aria-hidden', 'true');
    this.element.addEventListener('pointerdown', event => this.jump(event));
    this.element.addEventListener('pointermove', event => event.buttons && this.jump(event));
  }

  show(layout: Layout): void {
    this.layout = layout;
    this.element.hidden = layout.boxes.length < FROM;
    this.repaint();
  }

  /** Colours or places have changed: the boxes are painted anew when it is drawn next. */
  repaint(): void {
    this.image = null;
  }

  draw(): void {
    if (this.element.hidden || !this.layout) {
      return;
    }
    const s = this.scale(this.layout);
    const context = this.element.getContext('2d')!;
    this.image ??= this.painted(this.layout, s);
    context.clearRect(0, 0, this.element.width, this.element.height);
    context.drawImage(this.image, 0, 0);
    const view = this.canvas.viewport();
    context.strokeStyle = getComputedStyle(this.element).getPropertyValue('--tc-accent');
    context.lineWidth = 1.5;
    context.strokeRect(view.x * s, view.y * s, view.w * s, view.h * s);
  }

  private scale(layout: Layout): number {
    const { w, h: height } = layout.root;
    return Math.min(120 / w, 160 / height);
  }

  private painted(layout: Layout, s: number): HTMLCanvasElement {
    const image = document.createElement('canvas');
    image.width = this.element.width = Math.max(24, Math.ceil(layout.root.w * s));
    image.height = this.element.height = Math.max(24, Math.ceil(layout.root.h * s));
    const paint = image.getContext('2d')!;
    for (const box of layout.boxes) {
      const kernel = box.item.kind === 'leaf' ? box.item.node.kernel : null;
      paint.fillStyle = kernel === null ? '#8888' : kernelColour(kernel, 0.9);
      paint.fillRect(box.x * s, box.y * s, Math.max(1, box.w * s), Math.max(1, box.h * s));
    }
    return image;
  }

  private jump(event: PointerEvent): void {
    if (this.layout) {
      const rect = this.element.getBoundingClientRect();
      const s = this.scale(this.layout);
      this.canvas.centerOn((event.clientX - rect.left) / s, (event.clientY - rect.top) / s);
    }
  }
}
