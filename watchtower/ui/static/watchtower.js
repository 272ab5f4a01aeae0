// Keeps an open page current, shows how long ago times were, and copies texts.
// Everything on a page is readable without this script.
"use strict";

const EVERY_MS = 2000;
const SLOWEST_MS = 30000;
const shownEtag = document.documentElement.dataset.etag;
let etag = shownEtag ? `"${shownEtag}"` : null;
let waitMs = EVERY_MS;
let answeredAt = Date.now();
let timer = 0;

// ---- Polling: ask for the same page again; the answer is 304 while nothing has changed. ----

async function poll() {
  timer = 0;
  try {
    const headers = etag ? { "If-None-Match": etag } : {};
    const answer = await fetch(location.href, { headers, cache: "no-store" });
    // The session has ended: the tower, or a proxy in front of it, shows its login.
    if (answer.redirected || answer.status === 401) return location.reload();
    if (answer.status === 200) {
      show(await answer.text());
      etag = answer.headers.get("ETag");
    } else if (answer.status !== 304) {
      throw new Error(`status ${answer.status}`);
    }
    answeredAt = Date.now();
    waitMs = EVERY_MS;
    sayOffline("");
  } catch (error) {
    waitMs = Math.min(waitMs * 2, SLOWEST_MS);
    const ago = sayDuration((Date.now() - answeredAt) / 1000);
    sayOffline(`This page is ${ago} old: the tower does not answer (${error.message}).`);
  }
  plan();
}

function plan() {
  if (!timer && !document.hidden && document.querySelector("[data-live]")) {
    timer = setTimeout(poll, waitMs);
  }
}

function sayOffline(text) {
  const box = document.getElementById("offline");
  box.hidden = !text;
  if (box.textContent !== text) box.textContent = text;
}

function show(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  if (isOutdated(fresh)) return location.reload();
  if (document.title !== fresh.title) document.title = fresh.title;
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(part.id);
    if (next) morph(part, next);
  }
  showAges();
}

// After an upgrade of the tower the style and this script are other files.
function isOutdated(fresh) {
  const find = (page) => page.querySelector("script[src]")?.getAttribute("src");
  const isTyping = document.activeElement?.matches("input, select, textarea");
  return !isTyping && find(document) !== find(fresh);
}

// ---- Morphing: change only what differs, so that focus, selection and open parts stay. ----

const KEPT = new Set(["open", "data-said"]); // what the reader or this script has set

function morph(old, fresh) {
  if (old.isEqualNode(fresh) || "own" in old.dataset) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (!KEPT.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const known = new Map();
  for (const child of old.children) if (child.id) known.set(child.id, child);
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const found = next.id ? known.get(next.id) : findAlike(at, next);
    if (!found) {
      old.insertBefore(document.importNode(next, true), at);
      continue;
    }
    if (found === at) at = at.nextSibling;
    else old.insertBefore(found, at);
    if (found.nodeType === Node.ELEMENT_NODE) morph(found, next);
    else if (found.data !== next.data) found.data = next.data;
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function findAlike(at, next) {
  const isAlike = at && at.nodeName === next.nodeName && !at.id;
  return isAlike ? at : null;
}

// ---- Ages: the server writes times, because ages would change the page every second. ----

function sayDuration(seconds) {
  const length = Math.max(0, Math.round(seconds));
  if (length < 120) return `${length} s`;
  if (length < 7200) return `${Math.floor(length / 60)} min`;
  if (length < 172800) return `${Math.floor(length / 3600)} h`;
  return `${Math.floor(length / 86400)} days`;
}

function showAges() {
  for (const time of document.querySelectorAll("time[data-age], time[data-since]")) {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    if (Number.isNaN(seconds)) continue;
    const said = sayDuration(Math.abs(seconds));
    const isStart = "since" in time.dataset;
    time.dataset.said = isStart ? said : seconds < 0 ? `in ${said}` : `${said} ago`;
  }
}

// ---- Copying: one listener for the page, so that new elements work, too. ----

async function copy(button) {
  const text = button.previousElementSibling.textContent.trim();
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without TLS there is no clipboard: select the text, so that one key copies it.
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
    return;
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) copy(button);
});
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  timer = 0;
  if (!document.hidden) poll();
});
document.documentElement.classList.add("js");
setInterval(showAges, 1000);
showAges();
plan();
