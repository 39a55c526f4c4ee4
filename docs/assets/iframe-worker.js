/* Search of the site when it is opened from the disk: browsers start no worker from file://, a frame can do its work. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = frame.contentWindow;
      this.waiting = [];
      this.inside = inside;
      inside.postMessage = (data) => this.answer(data);
      inside.importScripts = () => Promise.resolve();
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.ask(data));
      };
      frame.contentDocument.body.appendChild(script);
    }
    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    ask(data) {
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.ask(data);
    }
    terminate() {}
  };
}
