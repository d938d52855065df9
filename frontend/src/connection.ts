// Whether the server still answers; the page says when it does not, and goes on when it is back.

import { api, whenUnreachable } from "./api";
import { element } from "./dom";

const EVERY_MS = 4000;
const RETRY_MS = 1500;

export class Connection {
  readonly root: HTMLElement;
  private lost = false;
  private timer = 0;

  constructor(private instance: string, private readonly onBack: () => void) {
    this.root = element(
      "div",
      { class: "banner", hidden: true, aria: { role: "alert" } },
      element("strong", {}, "The server does not answer. "),
      "What is loaded stays on screen. Start it again with the same asmil view command; this page reconnects by itself.",
    );
    whenUnreachable(() => this.lose());
    this.wait(EVERY_MS);
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.wait(0);
    });
  }

  /** Something could not be loaded: look at once. */
  check(): void {
    this.wait(0);
  }

  private wait(time: number): void {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.look(), time);
  }

  private async look(): Promise<void> {
    if (document.hidden && !this.lost) {
      this.wait(EVERY_MS);
      return;
    }
    try {
      const { instance } = await api.alive();
      if (instance !== this.instance) {
        location.reload(); // another server: the link in the address shows the same view
        return;
      }
      if (this.lost) {
        this.lost = false;
        this.root.hidden = true;
        this.onBack();
      }
      this.wait(EVERY_MS);
    } catch {
      this.lose();
    }
  }

  private lose(): void {
    this.lost = true;
    this.root.hidden = false;
    this.wait(RETRY_MS);
  }
}
