// Whether the server still answers and has what the page shows; the page says when it does not, and goes on when it is back.

import { api, whenOutdated, whenUnreachable, type About } from "./api";
import { element } from "./dom";

const EVERY_MS = 4000;
const RETRY_MS = 1500;
const RELOAD_MS = 5000;
const RELOADED = "asmil-reloaded";

export class Connection {
  readonly root = element("div", { class: "banner", hidden: true, aria: { role: "alert" } });
  private lost = false;
  private timer = 0;

  constructor(private readonly about: About, private readonly onBack: () => void, private readonly reload: () => void) {
    whenUnreachable(() => this.lose());
    whenOutdated(() => this.reloadOnce());
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
      const { instance, runs } = await api.alive();
      if (instance !== this.about.instance) {
        this.reload(); // another server: the link in the address shows the same view
        return;
      }
      if (this.lost) {
        this.lost = false;
        this.root.hidden = true;
        this.onBack();
      }
      this.compare(runs);
      this.wait(EVERY_MS);
    } catch {
      this.lose();
    }
  }

  /** What is on screen stays until the user asks for the new state, or for something that is no longer there. */
  private compare(versions: string[]): void {
    const changed = this.about.runs.filter((run, place) => run.version !== versions[place]).map((run) => run.name);
    if (!changed.length || !this.root.hidden) return;
    this.root.replaceChildren(
      element("strong", {}, `${changed.join(", ")} changed since this page was loaded. `),
      "Predictions and maps on this page are those from before. ",
      element("button", { type: "button", onclick: () => this.reload() }, "Load again"),
    );
    this.root.hidden = false;
  }

  private lose(): void {
    this.lost = true;
    this.root.replaceChildren(
      element("strong", {}, "The server does not answer. "),
      "What is loaded stays on screen. Start it again with the same asmil view command; this page reconnects by itself.",
    );
    this.root.hidden = false;
    this.wait(RETRY_MS);
  }

  /** Files that change all the time must not keep the page from being read. */
  private reloadOnce(): void {
    if (Date.now() - Number(sessionStorage.getItem(RELOADED) ?? 0) < RELOAD_MS) return;
    sessionStorage.setItem(RELOADED, String(Date.now()));
    this.reload();
  }
}
