// Two views that move together, in microns: also slides of different size and resolution.

import type { SlideView } from "./slide_view";

/** Where the second view is when the first one is somewhere: microns per screen pixel are the same. */
export class Link {
  private offset = { x: 0, y: 0 };

  constructor(private readonly views: readonly [SlideView, SlideView], private readonly sameSlide: () => boolean) {}

  /** Take the places that both views have now as belonging together; those of one slide do anyway. */
  hold(): void {
    const [a, b] = this.views;
    if (this.sameSlide() || !a.size || !b.size) {
      this.offset = { x: 0, y: 0 };
      return;
    }
    const [from, to] = [a.position, b.position];
    this.offset = { x: to.x * b.mpp - from.x * a.mpp, y: to.y * b.mpp - from.y * a.mpp };
  }

  /** Bring the other view to where the one that leads went; a view that follows must not lead. */
  follow(moved: SlideView): void {
    const [a, b] = this.views;
    if (!a.size || !b.size) return;
    const other = moved === a ? b : a;
    const sign = moved === a ? 1 : -1;
    const { x, y, zoom } = moved.position;
    other.move({
      x: (x * moved.mpp + sign * this.offset.x) / other.mpp,
      y: (y * moved.mpp + sign * this.offset.y) / other.mpp,
      zoom: (zoom * moved.mpp) / other.mpp,
    });
  }
}
