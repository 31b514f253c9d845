/* The search of this site runs in a worker. A browser refuses workers to a page that was opened from the disk (file://), so there
   a hidden frame takes the worker's place: it runs the same script, and hands messages to the page and back. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      const run = (source) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script");
          Object.assign(script, { src: source, onload: resolve, onerror: reject });
          inner.document.body.append(script);
        });
      inner.document.write("<!doctype html><body></body>");
      inner.document.close();
      inner.postMessage = (data) => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
      inner.importScripts = (...sources) => sources.reduce((before, each) => before.then(() => run(each)), Promise.resolve());
      this.ready = run(url);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
