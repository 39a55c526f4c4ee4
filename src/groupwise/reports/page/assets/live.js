// A page that is being watched: asks for what is new, hands it on, and says how fresh it is.
"use strict";

(() => {
  const MOST_WAIT = 30; // seconds between two tries while nothing answers
  const HIDDEN = 5; // times slower in a tab that nobody sees
  const PATIENCE = 20; // seconds after which an answer counts as lost
  const OVER = ["finished", "stopped", "failed"];

  const last = (list) => (list.length ? list[list.length - 1] : -1);
  const newest = (rollouts) => (rollouts ? rollouts.groups : []).reduce((most, group) => Math.max(most, group.step), -1);

  /** 4 -> "4 s", 130 -> "2 min", 7300 -> "2 h". */
  function span(seconds) {
    if (seconds < 100) return `${Math.round(seconds)} s`;
    return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
  }

  /** The line in the header: (state, words, seconds or null) => void. What changes each second is not read out. */
  function line() {
    const box = document.createElement("p");
    const part = (role) => {
      const made = box.appendChild(document.createElement("span"));
      made.setAttribute(role === "status" ? "role" : "aria-hidden", role === "status" ? role : "true");
      return made;
    };
    box.id = box.className = "live";
    const [dot, words, age] = [part(""), part("status"), part("")];
    dot.textContent = "\u25cf ";
    words.setAttribute("aria-live", "polite");
    (document.querySelector("header") || document.body).append(box);
    const colours = { going: "var(--good, #1a7f37)", lost: "var(--warn, #9a6700)", over: "var(--muted, #6e7781)" };
    return (state, said, ago) => {
      box.dataset.state = state;
      dot.style.color = colours[state];
      if (words.textContent !== said) words.textContent = said;
      age.textContent = ago === null ? "" : `, ${span(ago)} ago`;
    };
  }

  /** One question: the answer, null if nothing changed. Throws Error with words for a person. */
  async function request(url, rollout, tag) {
    const cut = new AbortController();
    const clock = setTimeout(() => cut.abort(), PATIENCE * 1000);
    const headers = tag ? { "If-None-Match": tag } : {};
    try {
      const response = await fetch(`${url}?rollout=${rollout}`, { cache: "no-store", headers, signal: cut.signal });
      const text = await response.text();
      return { status: response.status, text, tag: response.headers.get("ETag") || "" };
    } catch {
      throw new Error("connection lost");
    } finally {
      clearTimeout(clock);
    }
  }

  function watch(page) {
    const { url, seconds } = page.live;
    const [run] = page.runs;
    const show = line();
    let rollout = newest(run.rollouts); // the last step whose groups the page holds
    let tag = ""; // of the last answer: the same need not be sent again
    let heard = Date.now();
    let failures = 0;
    let trouble = "";
    let timer = 0;
    let asking = false;
    let lastTime = OVER.includes(run.status.state);
    let over = false;

    /** The status has its own place in words; here only how far, "step 12 of 60" if it says that. */
    function far() {
      const told = /step [\d,]+ of [\d,]+/.exec(run.status.words);
      if (told) return told[0];
      return run.steps.step.length ? `step ${last(run.steps.step)}` : "no step yet";
    }

    function tell() {
      if (trouble) show("lost", `${trouble}, trying again`, null);
      else if (over) show("over", `run ${run.status.state}; page is final`, null);
      else show("going", `live, ${far()}`, (Date.now() - heard) / 1000);
    }

    function wait() {
      const usual = seconds * (document.hidden ? HIDDEN : 1);
      return failures ? Math.max(usual, Math.min(MOST_WAIT, seconds * 2 ** failures)) : usual;
    }

    function later(delay) {
      clearTimeout(timer);
      timer = setTimeout(ask, delay * 1000);
    }

    function take(answer) {
      if (answer.status === 304) return;
      if (answer.status !== 200) throw new Error(answer.text.trim() || `the server answered ${answer.status}`);
      const fresh = JSON.parse(answer.text);
      if (fresh.edition !== page.edition) {
        over = true;
        location.reload();
        return;
      }
      const [now] = fresh.runs;
      const grown = ["steps", "evaluations"].some((name) => last(now[name].step) > last(run[name].step));
      if (grown || now.rollouts) heard = Date.now();
      tag = now.rollouts ? "" : answer.tag;
      rollout = Math.max(rollout, newest(now.rollouts));
      groupwise.apply(fresh);
      if (now.rollouts) groupwise.moreRollouts(now.rollouts);
    }

    async function ask() {
      if (asking || over) return;
      asking = true;
      try {
        take(await request(url, rollout, tag));
        [failures, trouble] = [0, ""];
        over = over || lastTime;
        lastTime = OVER.includes(run.status.state);
      } catch (error) {
        [failures, trouble] = [failures + 1, error.message];
      }
      asking = false;
      tell();
      if (over) clearInterval(ticking);
      else later(wait());
    }

    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && !over && !asking) later(0);
    });
    const ticking = setInterval(tell, 1000);
    tell();
    later(wait());
  }

  function start() {
    const page = groupwise.page;
    if (page && page.live && page.runs.length) watch(page);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
