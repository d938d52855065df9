// One slide in deep zoom with its map, annotations and scale bar drawn above it.

import OpenSeadragon from "openseadragon";
import type { Region, SlideAbout, SlideRow } from "./api";
import { element } from "./dom";
import type { MapCanvas } from "./map_canvas";
import { SlideSource } from "./slide_source";

export interface Position {
  x: number;
  y: number;
  /** level-0 pixels per screen pixel */
  zoom: number;
}

const BAR_LENGTHS_UM = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000];
const GRAY = "grayscale(1)";
const NAVIGATOR_PX = 120;
const SMALLEST_PICTURE_PX = 200;
const REGION_COLORS = ["#00b3ff", "#ff9d00", "#ff4fd8", "#7dff5a", "#ffe600", "#b28dff"];

// OpenSeadragon adds a style sheet, which the content security policy refuses, unless it finds one of its own. Ours is in
// style.css; an element of no known kind stands for it here.
const standIn = document.createElementNS("urn:asmil:viewer", "style");
standIn.setAttribute("data-openseadragon-mobile-css", "true");
document.head.append(standIn);

/** What is drawn above the slide. */
export interface Overlay {
  map: MapCanvas | null;
  opacity: number;
  regions: Region[] | null;
  outlined: number;
}

export class SlideView {
  readonly root: HTMLDivElement;
  readonly viewer: OpenSeadragon.Viewer;
  overlay: Overlay = { map: null, opacity: 0.5, regions: null, outlined: -1 };
  onMove: (position: Position) => void = () => undefined;
  onHover: (x: number, y: number, at: { x: number; y: number } | null) => void = () => undefined;
  onClick: (x: number, y: number) => void = () => undefined;
  onTileFailed: () => void = () => undefined;
  private readonly canvas: HTMLCanvasElement;
  private readonly resized: ResizeObserver;
  private about: SlideAbout | null = null;
  private paths: { region: Region; path: Path2D; color: string }[] = [];
  private pathsOf: Region[] | null = null;
  /** whether the whole slide is shown, also when the window changes */
  private whole = true;

  /** parent: in the page already, since OpenSeadragon measures itself at once */
  constructor(parent: HTMLElement) {
    const place = element("div", { class: "deep-zoom" });
    this.canvas = element("canvas", { class: "overlay" });
    this.root = element("div", { class: "slide-view" }, place);
    parent.prepend(this.root);
    this.viewer = OpenSeadragon({
      element: place,
      drawer: "canvas",
      showNavigationControl: false,
      showNavigator: true,
      navigatorWidth: 1,
      navigatorHeight: 1,
      navigatorPosition: "TOP_RIGHT",
      navigatorAutoFade: false,
      animationTime: 0.35,
      springStiffness: 9,
      visibilityRatio: 0.4,
      maxZoomPixelRatio: 8,
      minZoomImageRatio: 0.6,
      preserveImageSizeOnResize: true,
      zoomPerScroll: 1.35,
      imageLoaderLimit: 8,
      maxImageCacheCount: 800,
      timeout: 60_000,
      gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
      gestureSettingsTouch: { clickToZoom: false, dblClickToZoom: true, pinchRotate: false },
      gestureSettingsPen: { clickToZoom: false, dblClickToZoom: true },
    } as OpenSeadragon.Options);
    this.viewer.canvas.append(this.canvas); // above the slide, below the navigator
    this.viewer.addHandler("update-viewport", () => this.draw());
    this.viewer.addHandler("viewport-change", () => this.onMove(this.position));
    for (const gesture of ["canvas-drag", "canvas-scroll", "canvas-pinch", "canvas-double-click"] as const) {
      this.viewer.addHandler(gesture, () => (this.whole = false));
    }
    this.viewer.addHandler("canvas-key", (event) => {
      event.preventDefaultAction = true; // the page has its own shortcuts
    });
    this.viewer.addHandler("canvas-click", (event) => {
      if (!event.quick || !this.about) return;
      const point = this.toSlide(event.position.x, event.position.y);
      this.onClick(point.x, point.y);
    });
    this.viewer.addHandler("tile-load-failed", () => this.onTileFailed());
    place.addEventListener("pointermove", (event) => {
      if (!this.about || event.pointerType === "touch") return;
      const bounds = place.getBoundingClientRect();
      const at = { x: event.clientX - bounds.left, y: event.clientY - bounds.top };
      const point = this.toSlide(at.x, at.y);
      this.onHover(point.x, point.y, at);
    });
    place.addEventListener("pointerleave", () => this.onHover(0, 0, null));
    this.resized = new ResizeObserver(() => {
      this.sizeNavigator();
      this.draw();
      // after OpenSeadragon has taken note of its new size
      setTimeout(() => this.whole && this.root.isConnected && this.viewer.isOpen() && this.home(true), 80);
    });
    this.resized.observe(this.root);
  }

  /** Show a slide, where it was or whole. */
  open(row: SlideRow, about: SlideAbout, position: Position | null): Promise<void> {
    this.about = about;
    this.pathsOf = null;
    return new Promise((resolve) => {
      this.viewer.addOnceHandler("open", () => {
        this.whole = true;
        this.takeSize();
        if (position && position.zoom > 0) this.move(position, true);
        this.sizeNavigator();
        this.draw();
        resolve();
      });
      this.viewer.open({ tileSource: new SlideSource(row, about) as unknown as OpenSeadragon.TileSource });
    });
  }

  close(): void {
    this.about = null;
    this.overlay = { ...this.overlay, map: null, regions: null, outlined: -1 };
    this.viewer.close();
    this.draw();
  }

  destroy(): void {
    this.resized.disconnect();
    this.about = null;
    this.viewer.removeAllHandlers("open"); // a slide that is still on its way
    this.viewer.destroy();
    this.root.remove();
  }

  get mpp(): number {
    return this.about?.mpp ?? 1;
  }

  get size(): [number, number] | null {
    return this.about?.size ?? null;
  }

  /** The center of the view and its zoom. */
  get position(): Position {
    const width = this.about?.size[0] ?? 1;
    const center = this.viewer.viewport.getCenter();
    const pixels = Math.max(1, this.viewer.viewport.getContainerSize().x);
    return { x: center.x * width, y: center.y * width, zoom: width / (this.viewer.viewport.getZoom() * pixels) };
  }

  /** Go somewhere. */
  move(position: Position, immediately = false): void {
    if (!this.about) return;
    const width = this.about.size[0];
    const pixels = Math.max(1, this.viewer.viewport.getContainerSize().x);
    this.whole = false;
    this.viewer.viewport.zoomTo(width / (position.zoom * pixels), undefined, immediately);
    this.viewer.viewport.panTo(new OpenSeadragon.Point(position.x / width, position.y / width), immediately);
    if (immediately) this.viewer.viewport.update();
  }

  zoomBy(factor: number): void {
    this.whole = false;
    this.viewer.viewport.zoomBy(factor).applyConstraints();
  }

  home(immediately = false): void {
    this.whole = true;
    this.viewer.viewport.goHome(immediately);
  }

  /** Load what could not be loaded again. */
  reload(): void {
    this.viewer.world.resetItems();
  }

  /** Draw the overlay again; the slide below stays. */
  draw(): void {
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [this.root.clientWidth, this.root.clientHeight];
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
    }
    const context = this.canvas.getContext("2d")!;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!this.about || !this.viewer.isOpen()) return;
    const { x, y, zoom } = this.shownPosition();
    this.showNavigator(x, y, zoom);
    this.drawAbove(context, scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawScaleBar(context, zoom, height);
  }

  /** The map, the annotations and the outlined tile. left, top: what is cut off, in screen pixels */
  private drawAbove(context: CanvasRenderingContext2D, scale: number, left = 0, top = 0): void {
    const { x, y, zoom } = this.shownPosition();
    const perPixel = scale / zoom;
    const [halfWidth, halfHeight] = [this.root.clientWidth / 2 - left, this.root.clientHeight / 2 - top];
    // from level-0 pixels to the canvas
    context.setTransform(perPixel, 0, 0, perPixel, halfWidth * scale - x * perPixel, halfHeight * scale - y * perPixel);
    this.drawMap(context, perPixel);
    this.drawRegions(context, perPixel);
    this.drawOutline(context, perPixel);
  }

  /** Tell OpenSeadragon the size of the pane at once: it looks at the next frame, and a second pane has made it smaller. */
  private takeSize(): void {
    this.viewer.viewport.resize(new OpenSeadragon.Point(this.root.clientWidth, this.root.clientHeight), false);
    if (this.whole) this.home(true);
  }

  /** The overview has the shape of the slide. */
  private sizeNavigator(): void {
    const size = this.about?.size;
    if (!size) return;
    const scale = Math.min(Math.min(NAVIGATOR_PX, this.root.clientWidth * 0.3) / size[0], NAVIGATOR_PX / size[1]);
    const { navigator } = this.viewer as unknown as { navigator: { setWidth: (to: number) => void; setHeight: (to: number) => void } };
    navigator.setWidth(Math.max(16, Math.round(size[0] * scale)));
    navigator.setHeight(Math.max(16, Math.round(size[1] * scale)));
  }

  /** The overview helps only where a part of the slide is in view. */
  private showNavigator(x: number, y: number, zoom: number): void {
    const [width, height] = this.about!.size;
    const [halfWidth, halfHeight] = [(this.root.clientWidth / 2) * zoom, (this.root.clientHeight / 2) * zoom];
    const slack = 2 * zoom;
    const whole = x - halfWidth <= slack && y - halfHeight <= slack && x + halfWidth >= width - slack && y + halfHeight >= height - slack;
    this.viewer.navigator.element.hidden = whole || !this.about!.image;
  }

  /** How much of the slide a map covers; the same for every tile. */
  get mapOpacity(): number {
    return this.about?.image ? this.overlay.opacity : Math.max(this.overlay.opacity, 0.9);
  }

  /** Whether the slide is drawn in gray, below what is drawn in color. */
  get gray(): boolean {
    return this.slideCanvas.style.filter !== "";
  }

  set gray(on: boolean) {
    this.slideCanvas.style.filter = on ? GRAY : "";
  }

  private get slideCanvas(): HTMLCanvasElement {
    return (this.viewer.drawer as unknown as { canvas: HTMLCanvasElement }).canvas;
  }

  /** The slide and what is drawn above it as one canvas: the part of the pane that the slide covers, on white. */
  snapshot(): HTMLCanvasElement {
    const scale = window.devicePixelRatio || 1;
    const { left, top, width, height } = this.covered();
    const picture = document.createElement("canvas");
    picture.width = Math.round(width * scale);
    picture.height = Math.round(height * scale);
    const context = picture.getContext("2d")!;
    context.fillStyle = "#fff";
    context.fillRect(0, 0, picture.width, picture.height);
    if (!this.about || !this.viewer.isOpen()) return picture;
    if (this.about.image) {
      const drawn = this.slideCanvas;
      const perPixel = drawn.width / this.root.clientWidth;
      context.filter = this.gray ? GRAY : "none";
      context.drawImage(drawn, left * perPixel, top * perPixel, width * perPixel, height * perPixel, 0, 0, picture.width, picture.height);
      context.filter = "none";
    }
    this.drawAbove(context, scale, left, top);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawScaleBar(context, this.shownPosition().zoom, height);
    return picture;
  }

  /** The part of the pane that the slide covers, in screen pixels; all of it where that is too little for a picture. */
  private covered(): { left: number; top: number; width: number; height: number } {
    const [paneWidth, paneHeight] = [this.root.clientWidth, this.root.clientHeight];
    const pane = { left: 0, top: 0, width: paneWidth, height: paneHeight };
    if (!this.about || !this.viewer.isOpen()) return pane;
    const { x, y, zoom } = this.shownPosition();
    const [slideWidth, slideHeight] = this.about.size;
    const left = Math.max(0, Math.floor(paneWidth / 2 - x / zoom));
    const top = Math.max(0, Math.floor(paneHeight / 2 - y / zoom));
    const width = Math.min(paneWidth, Math.ceil(paneWidth / 2 + (slideWidth - x) / zoom)) - left;
    const height = Math.min(paneHeight, Math.ceil(paneHeight / 2 + (slideHeight - y) / zoom)) - top;
    return width < SMALLEST_PICTURE_PX || height < SMALLEST_PICTURE_PX ? pane : { left, top, width, height };
  }

  private shownPosition(): Position {
    const width = this.about!.size[0];
    const { viewport } = this.viewer;
    const center = viewport.getCenter(true);
    return {
      x: center.x * width,
      y: center.y * width,
      zoom: width / (viewport.getZoom(true) * Math.max(1, viewport.getContainerSize().x)),
    };
  }

  private toSlide(x: number, y: number): { x: number; y: number } {
    const { x: centerX, y: centerY, zoom } = this.shownPosition();
    return { x: centerX + (x - this.root.clientWidth / 2) * zoom, y: centerY + (y - this.root.clientHeight / 2) * zoom };
  }

  private drawMap(context: CanvasRenderingContext2D, perPixel: number): void {
    const { map } = this.overlay;
    if (!this.about!.image) {
      const [width, height] = this.about!.size;
      context.strokeStyle = "#8888";
      context.lineWidth = 1 / perPixel;
      context.strokeRect(0, 0, width, height);
    }
    if (!map) return;
    const { places, canvas } = map;
    context.imageSmoothingEnabled = false;
    context.globalAlpha = this.mapOpacity;
    context.drawImage(canvas, places.x, places.y, places.columns * places.cell[0], places.rows * places.cell[1]);
    context.globalAlpha = 1;
  }

  private drawRegions(context: CanvasRenderingContext2D, perPixel: number): void {
    const { regions } = this.overlay;
    if (!regions) return;
    if (this.pathsOf !== regions) {
      this.pathsOf = regions;
      this.paths = outlinePaths(regions);
    }
    context.lineJoin = "round";
    for (const { region, path, color } of this.paths) {
      context.setLineDash(region.cut_out ? [8 / perPixel, 6 / perPixel] : []);
      context.strokeStyle = "#000a";
      context.lineWidth = 4.5 / perPixel;
      context.stroke(path);
      context.strokeStyle = color;
      context.lineWidth = 2.2 / perPixel;
      context.stroke(path);
    }
    context.setLineDash([]);
  }

  private drawOutline(context: CanvasRenderingContext2D, perPixel: number): void {
    const { map, outlined } = this.overlay;
    if (!map || outlined < 0) return;
    const { coords, tile_px: side } = map.places;
    const [x, y] = [coords[outlined * 2]!, coords[outlined * 2 + 1]!];
    context.strokeStyle = "#000c";
    context.lineWidth = 5 / perPixel;
    context.strokeRect(x, y, side, side);
    context.strokeStyle = "#fff";
    context.lineWidth = 2 / perPixel;
    context.strokeRect(x, y, side, side);
  }

  private drawScaleBar(context: CanvasRenderingContext2D, zoom: number, height: number): void {
    const known = this.about!.mpp;
    const perPixel = zoom * (known ?? 1);
    const room = Math.min(140, this.root.clientWidth * 0.22); // the legend is beside it
    const length = BAR_LENGTHS_UM.findLast((one) => one / perPixel <= room) ?? BAR_LENGTHS_UM[0]!;
    const text = known === null ? `${length} px` : length >= 1000 ? `${length / 1000} mm` : `${length} µm`;
    const width = length / perPixel;
    if (width < 8) return;
    context.fillStyle = "#fffd";
    context.beginPath();
    context.roundRect(12, height - 40, width + 20, 30, 6);
    context.fill();
    context.fillStyle = "#111";
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText(text, 22 + width / 2, height - 24);
    context.fillRect(22, height - 19, width, 3);
  }
}

function outlinePaths(regions: Region[]): { region: Region; path: Path2D; color: string }[] {
  const groups = [...new Set(regions.map((region) => region.group))];
  return regions.map((region) => {
    const path = new Path2D();
    for (const ring of region.rings) {
      for (let at = 0; at + 1 < ring.length; at += 2) {
        if (at === 0) path.moveTo(ring[at]!, ring[at + 1]!);
        else path.lineTo(ring[at]!, ring[at + 1]!);
      }
      path.closePath();
    }
    return { region, path, color: REGION_COLORS[groups.indexOf(region.group) % REGION_COLORS.length]! };
  });
}
