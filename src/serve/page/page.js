// The chat page of `bevatron serve`. What a model or the server says becomes text nodes, never markup.
"use strict";

// ---- Helpers

const byId = (id) => document.getElementById(id);

// make("button.plain", { onclick: copy }, icon("copy"), "Copy")
function make(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function icon(name) {
  const node = byId("icon").content.firstElementChild.cloneNode(true);
  node.firstElementChild.setAttribute("href", `#icon-${name}`);
  return node;
}

const iconButton = (name, label, onclick) =>
  make("button.plain", { title: label, "aria-label": label, onclick }, icon(name));

// The browser has a clipboard on HTTPS and on localhost; elsewhere an old way still works.
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea.unseen");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    await copyText(text());
    button.replaceChildren(icon("done"));
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

// An address without the name and key that the page's own may have: fetch refuses those.
const address = (path) => new URL(path, location.origin + location.pathname);
const percent = (part, digits = 0) => `${(100 * part).toFixed(digits)}%`;
const now = () => performance.now();
const whole = (value) => Math.round(value).toLocaleString("en");

// A browser may refuse storage: then nothing outlives the page.
let local = {}, session = {};
try {
  local = localStorage;
  session = sessionStorage;
} catch {}

// ---- Settings

// Name in a request, label, hint, least, most, where the slider stands while the field is empty.
const samplingFields = [
  ["temperature", "Temperature", "Low: the likeliest words; high: more variety", 0, 2, 1],
  ["top_p", "Top p", "Only the likeliest tokens with this probability together", 0, 1, 1],
  ["min_p", "Min p", "Only tokens this likely, compared with the likeliest", 0, 1, 0],
  ["top_k", "Top k", "Only this many of the likeliest tokens"],
  ["max_tokens", "Max tokens", "The longest answer", 1],
  ["seed", "Seed", "The same seed gives the same answer again"],
  ["repetition_penalty", "Repetition penalty", "Above 1: tokens of the text become less likely", 0],
  ["presence_penalty", "Presence penalty", "Above 0: tokens of the answer become less likely", -2, 2],
  ["frequency_penalty", "Frequency penalty", "The same, growing with each repetition", -2, 2],
];
const likeliest = 5;  // alternatives asked for with each token
const completionTokens = 256;  // /v1/completions stops after 16 unless it is told

const settings = { mode: "chat", theme: "auto" };
const boundFields = [];
const saveSettings = () => { local["bevatron.settings"] = JSON.stringify(settings); };

// Keeps a field and a setting the same; settings of fields are texts.
function bind(field, name) {
  boundFields.push([field, name]);
  field.addEventListener("input", () => {
    settings[name] = field.type === "checkbox" ? field.checked : field.value;
    saveSettings();
    showSettings();
  });
}

function showSettings() {
  for (const [field, name] of boundFields) {
    const value = settings[name] || field.dataset.neutral || "";
    field.checked = value;
    if (field.value !== value) field.value = value;
    field.classList.toggle("unset", !settings[name]);
  }
  document.body.classList.toggle("shaded", settings.probabilities);
}

function buildSettings() {
  for (const [name, label, hint, min, max, neutral] of samplingFields) {
    const number = make("input", { id: `set-${name}`, type: "number", min, max, step: "any", placeholder: "default" });
    const slider = make("input", { type: "range", min, max, step: 0.01, "aria-label": label, "data-neutral": neutral });
    byId("sampling").append(make("div.setting", { title: hint },
      make("label", { for: number.id }, label), number, ...(neutral === undefined ? [] : [slider])));
    bind(number, name);
    bind(slider, name);
  }
  for (const name of ["system", "stop-texts", "probabilities", "model"]) bind(byId(name), name);
  showSettings();
}

function resetSettings() {
  for (const [name] of [...samplingFields, ["system"], ["stop-texts"]]) settings[name] = "";
  saveSettings();
  showSettings();
}

function samplingOf(mode) {
  const sampling = {};
  for (const [name] of samplingFields) {
    const key = name === "max_tokens" && mode === "chat" ? "max_completion_tokens" : name;
    if (settings[name]) sampling[key] = Number(settings[name]);
  }
  const stop = (settings["stop-texts"] || "").split("\n").filter(Boolean);
  if (stop.length) sampling.stop = stop.map((line) => line.replaceAll("\\n", "\n"));
  return sampling;
}

// ---- Conversations in the browser

// A chat is {id, title, mode, created, updated, messages}; its messages are stored apart, so
// that the list is read quickly.
let database = null;

function openDatabase() {
  return new Promise((resolve) => {
    const request = indexedDB.open("bevatron", 1);
    request.onupgradeneeded = () => {
      for (const name of ["list", "messages"]) request.result.createObjectStore(name, { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(null);
  });
}

// Resolves with what `work`, given both stores, has read.
function transact(work) {
  if (!database) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(["list", "messages"], "readwrite");
    const request = work(transaction.objectStore("list"), transaction.objectStore("messages"));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

async function loadMessages(chat) {
  const stored = await transact((_, all) => all.get(chat.id));
  chat.messages ??= stored?.messages ?? [];
  const answers = chat.messages.filter(({ role }) => role === "assistant");
  for (const answer of answers) answer.finish ??= "stopped";  // the page was closed
}

async function store({ messages, ...entry }) {
  try {
    await transact((list, contents) => {
      list.put(entry);
      if (messages) contents.put({ id: entry.id, messages });
    });
  } catch (error) {
    showToast(`The conversation could not be saved: ${error}`);
  }
}

// ---- Tokens

const encoder = new TextEncoder();

const bytesOf = ({ token, bytes }) => bytes ?? [...encoder.encode(token)];

function nameOf(entry) {
  const bytes = bytesOf(entry);
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
  } catch {
    return `‹${bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("\u00a0")}›`;
  }
}

const probabilityOf = (logprob) => Number(Math.exp(Math.min(0, logprob ?? -Infinity)).toPrecision(4));

// The tokens of a chunk of either API as {token, bytes?, logprob, top_logprobs}.
function tokensOf({ logprobs }) {
  if (!logprobs?.tokens) return logprobs?.content ?? [];
  return logprobs.tokens.map((token, i) => ({
    token,
    logprob: logprobs.token_logprobs?.[i],
    top_logprobs: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([token, logprob]) => ({ token, logprob })),
  }));
}

// Puts tokens, {name, p, top, start, end}, on the text that they spell, which may come before or after.
// One that ends within a character covers all of it; one that only completes it, or is not in the
// text (an end of turn), is empty.
function createAligner(tokens) {
  const bytes = [];   // the text so far in UTF-8
  const places = [];  // for each byte, where in the text its character begins, or else the next one
  const waiting = [];
  let length = 0, cursor = 0;

  const agrees = (spelled, at) => spelled.every((byte, i) => at + i >= bytes.length || byte === bytes[at + i]);
  const fits = (spelled, at) => at + spelled.length <= bytes.length && agrees(spelled, at);
  // Where the token begins and ends in the bytes; null while its text has not come.
  function locate(spelled, isLast) {
    if (!isLast && !fits(spelled, cursor) && agrees(spelled, cursor)) return null;
    // The text may have more (signs for bytes that are no character), or lack a first token's space.
    for (let at = cursor; at < cursor + 24; ++at) {
      if (fits(spelled, at)) return [at, at + spelled.length];
    }
    const word = spelled.slice(spelled.findIndex((byte) => byte !== 32));
    return [cursor, fits(word, cursor) ? cursor + word.length : cursor];
  }
  function settle(isLast = false) {
    while (waiting.length) {
      const place = locate(waiting[0].spelled, isLast);
      if (!place) return;
      const [start, end] = place.map((byte) => places[byte] ?? length);
      tokens.push({ ...waiting.shift().token, start, end });
      cursor = place[1];
    }
  }

  return {
    addText(text) {
      for (const character of text) {
        encoder.encode(character).forEach((byte, i) => {
          bytes.push(byte);
          places.push(i ? length + character.length : length);
        });
        length += character.length;
      }
      settle();
    },
    addToken(entry) {
      const [token, ...top] = [entry, ...(entry.top_logprobs ?? []).slice(0, likeliest)]
        .map((one) => ({ name: nameOf(one), p: probabilityOf(one.logprob) }));
      waiting.push({ spelled: bytesOf(entry), token: { ...token, top } });
      settle();
    },
    finish: () => settle(true),
  };
}

// ---- Text with its tokens, and light markdown

// Writes ranges of a text into the document, each token as a span.
function createWriter(text, tokens = []) {
  function write(parent, start, end) {
    let low = 0, high = tokens.length;  // of the first token that ends after `start`
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tokens[middle].end > start) high = middle;
      else low = middle + 1;
    }
    for (let i = low; start < end && tokens[i]?.start < end; ++i) {
      const { p } = tokens[i], from = Math.max(start, tokens[i].start), to = Math.min(end, tokens[i].end);
      if (to <= from) continue;
      const kind = p < 0.1 ? "span.token.unlikely" : p < 0.5 ? "span.token.open" : "span.token";
      parent.append(text.slice(start, from),
        make(kind, { "data-token": i, tabindex: -1 }, text.slice(from, to)));
      start = to;
    }
    parent.append(text.slice(start, end));
  }
  return { text, write, line: ({ start, end }) => text.slice(start, end) };
}

// The lines from `start` on, as ranges of the text.
function linesOf(text, start) {
  const lines = [];
  for (const { length } of text.slice(start).split("\n")) {
    lines.push({ start, end: start + length });
    start += length + 1;
  }
  return lines;
}

// All repetitions are bounded, or a text could be made to take long.
const inlinePattern = new RegExp([
  /(?<tick>`+)(?<code>.{1,1000}?)(?<!`)\k<tick>(?!`)/,
  /\\(?<escaped>[\\`*_{}[\]()#+.!|>~-])/,
  /(?<strong>\*\*|(?<!\w)__)(?=\S)(?<bold>.{1,1000}?)(?<=\S)\k<strong>/,
  /(?<em>\*|(?<!\w)_)(?=[^\s*_])(?<slanted>.{1,1000}?)(?<=[^\s*_])\k<em>(?![\w*])/,
  /\[(?<label>[^[\]]{1,500})\]\((?<target>[^\s()]{1,1000})\)/,
  /(?<![\w/])(?<bare>https?:\/\/[^\s<>"'`*|()]{1,1000}[^\s<>"'`*|().,:;!?])/,
].map((part) => part.source).join("|"), "g");

function linkTo(target) {
  const href = URL.canParse(target) && new URL(target).href;
  return /^https?:/.test(href) ? make("a", { href, target: "_blank", rel: "noopener noreferrer" }) : null;
}

function writeInline(parent, start, end, writer, depth = 0) {
  let done = start;
  for (const match of writer.text.slice(start, end).matchAll(inlinePattern)) {
    const { tick, code, escaped, strong, bold, slanted, label, target, bare } = match.groups;
    const node = code ? make("code") : escaped ? parent : bold ? make("strong") : slanted ? make("em")
      : linkTo(target ?? bare);
    if (!node) continue;
    const inside = code ?? escaped ?? bold ?? slanted ?? label ?? bare;
    const from = start + match.index + (tick ?? strong ?? (bare ? "" : "*")).length;
    writer.write(parent, done, start + match.index);
    if (code || escaped || bare || depth > 3) writer.write(node, from, from + inside.length);
    else writeInline(node, from, from + inside.length, writer, depth + 1);
    if (node !== parent) parent.append(node);
    done = start + match.index + match[0].length;
  }
  writer.write(parent, done, end);
}

// Lines with their line breaks; those of a list item may lie apart in the text.
function writeLines(parent, lines, writer, writeLine) {
  lines.forEach(({ start, end }, i) => {
    if (i && writer.text[start - 1] === "\n") writer.write(parent, start - 1, start);
    else if (i) parent.append("\n");
    writeLine(parent, start, end, writer);
  });
  return parent;
}

const fencePattern = /^ {0,3}(`{3,}|~{3,}) *([\w+#.-]*)[^`]*$/;
const headingPattern = /^ {0,3}(#{1,6})(?: +|$)/;
const rulePattern = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const quotePattern = /^ {0,3}> ?/;
const itemPattern = /^( *)([-*+]|\d{1,9}[.)])(?: {1,4}|$)/;
const tablePattern = /^ *\|.*\| *$/;
const blockPatterns = [fencePattern, headingPattern, rulePattern, quotePattern, itemPattern, tablePattern, /^\s*$/];
const startsBlock = (text) => blockPatterns.some((pattern) => pattern.test(text));
const indentOf = (text) => text.search(/[^ ]|$/);

function codeBlock(language, lines, writer) {
  const code = writeLines(make("code"), lines, writer, writer.write);
  return make("div.code", {},
    make("div.code-head", {}, language || "code", copyButton("Copy the code", () => code.textContent)),
    make("pre", { tabindex: 0 }, code));
}

// The list that begins at line `i`, and the line after it.
function listBlock(lines, i, writer, depth) {
  const textOf = (line) => writer.line(lines[line]);
  const isBlank = (line) => !textOf(line).trim();
  const isOrdered = (marker) => /\d/.test(marker[2]);
  const opening = itemPattern.exec(textOf(i));
  const list = isOrdered(opening) ? make("ol", { start: parseInt(opening[2], 10) }) : make("ul");
  for (;;) {
    let next = i;
    while (next < lines.length && isBlank(next)) ++next;
    const marker = next < lines.length && itemPattern.exec(textOf(next));
    if (!marker || isOrdered(marker) !== isOrdered(opening)) return [list, i];
    // The item has what is indented more than its marker, and lines that go on with its text.
    const item = [{ start: lines[next].start + marker[0].length, end: lines[next].end }];
    let blanks = [];
    for (i = next + 1; i + blanks.length < lines.length;) {
      const line = lines[i + blanks.length], text = writer.line(line), indent = indentOf(text);
      if (!text.trim()) {
        blanks.push(line);
        continue;
      }
      if (indent < marker[1].length + 2 && (blanks.length || startsBlock(text))) break;
      item.push(...blanks, { start: line.start + Math.min(indent, marker[0].length), end: line.end });
      i += blanks.length + 1;
      blanks = [];
    }
    list.append(make("li", {}, ...nodesOf(item, writer, depth + 1)));
  }
}

// The blocks of some lines as {start, node}. Only the last one can change with what follows.
function blocksOf(lines, writer, depth = 0) {
  const blocks = [];
  const textOf = (at) => lines[at] ? writer.line(lines[at]) : "";
  for (let i = 0; i < lines.length;) {
    const first = i, text = textOf(i);
    const add = (node) => blocks.push({ start: lines[first].start, node });
    let match;
    if (!text.trim()) {
      ++i;
    } else if ((match = fencePattern.exec(text))) {
      const [, mark, language] = match;
      const closes = (line) => line.startsWith(mark) && !line.replaceAll(mark[0], "");
      do ++i; while (lines[i] && !closes(textOf(i).trim()));
      add(codeBlock(language, lines.slice(first + 1, i++), writer));
    } else if ((match = headingPattern.exec(text))) {
      const heading = { start: lines[i].start + match[0].length, end: lines[i++].end };
      add(writeLines(make(`h${Math.min(6, match[1].length + 1)}`), [heading], writer, writeInline));
    } else if (rulePattern.test(text)) {
      add(make("hr"));
      ++i;
    } else if (depth < 8 && quotePattern.test(text)) {
      const inside = [];
      for (; (match = quotePattern.exec(textOf(i))); ++i) {
        inside.push({ start: lines[i].start + match[0].length, end: lines[i].end });
      }
      add(make("blockquote", {}, ...nodesOf(inside, writer, depth + 1)));
    } else if (depth < 8 && itemPattern.test(text)) {
      const [list, next] = listBlock(lines, i, writer, depth);
      add(list);
      i = next;
    } else if (tablePattern.test(text)) {
      do ++i; while (tablePattern.test(textOf(i)));
      add(writeLines(make("pre"), lines.slice(first, i), writer, writer.write));
    } else {
      do ++i; while (!startsBlock(textOf(i)));
      add(writeLines(make("p"), lines.slice(first, i), writer, writeInline));
    }
  }
  return blocks;
}

const nodesOf = (lines, writer, depth) => blocksOf(lines, writer, depth).map(({ node }) => node);

// Without markdown a block is a line with its line break.
function plainBlocks(lines, writer) {
  return lines.map(({ start, end }) => {
    const node = make("span");
    writer.write(node, start, Math.min(end + 1, writer.text.length));
    return { start, node };
  });
}

// Shows a growing text in `box`: all blocks but the last stay as they are.
function createTextView(box) {
  let blocks = [];
  return {
    box,
    clear() {
      blocks = [];
      box.replaceChildren();
    },
    update(text, tokens, isPlain) {
      const last = blocks.pop();
      last?.node.remove();
      const lines = text ? linesOf(text, last?.start ?? 0) : [];
      const added = (isPlain ? plainBlocks : blocksOf)(lines, createWriter(text, tokens));
      box.append(...added.map(({ node }) => node));
      blocks.push(...added);
    },
  };
}

// ---- Probabilities of a token

const visible = (name) => name.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";

function cardRow({ name, p }, chosen) {
  const bar = make("span.bar");
  bar.style.setProperty("--part", p);
  return make(name === chosen ? "li.chosen" : "li", { "data-p": p },
    make("span.name", {}, visible(name)), bar, make("span.number", {}, percent(p, 2)));
}

function showCard(span) {
  const { message } = span.closest(".message").view;
  const tokens = span.closest(".reasoning") ? message.reasoningTokens : message.tokens;
  const first = Number(span.dataset.token);
  // Empty tokens that follow have no span of their own.
  let end = first + 1;
  while (end < first + 3 && tokens[end] && tokens[end].start === tokens[end].end) ++end;

  const card = byId("card");
  card.replaceChildren(...tokens.slice(first, end).flatMap((token) => {
    const rows = token.top.some(({ name }) => name === token.name) ? token.top : [...token.top, token];
    return [make("p", {}, make("b", {}, visible(token.name)), percent(token.p, 2)),
      make("ol", {}, ...rows.map((row) => cardRow(row, token.name)))];
  }));
  card.hidden = false;
  const place = span.getClientRects()[0];
  const left = Math.min(place.left, document.body.clientWidth - card.offsetWidth - 8);
  const top = place.top - card.offsetHeight - 6;
  card.style.left = `${Math.max(8, left)}px`;
  card.style.top = `${top < 8 ? place.bottom + 6 : top}px`;
  span.setAttribute("aria-describedby", "card");
}

const hideCard = () => { byId("card").hidden = true; };

// The first token of an answer is a tab stop; the arrow keys go on from there.
function moveAmongTokens(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const span = event.target.closest(".token");
  if (!step || !span) return;
  const all = [...span.closest(".text").querySelectorAll(".token")];
  const next = all[all.indexOf(span) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

// ---- The open conversation

let chats = [];  // newest first; messages only of those that were opened
let current = null, wanted = null;  // the open one; the one that is being opened
const views = new Map();    // message of the open conversation -> its view
const running = new Map();  // chat id -> AbortController
const modelsWithoutTemplate = new Set();

function newChat() {
  const mode = modelsWithoutTemplate.has(modelName()) ? "completion" : settings.mode;
  const created = Date.now();
  const id = created.toString(36) + Math.random().toString(36).slice(2);
  openChat({ id, title: "", mode, created, updated: created, messages: [] });
  focusInput();
}

async function openChat(chat) {
  wanted = chat;
  if (!chat.messages) await loadMessages(chat);
  if (chat !== wanted) return;
  current = chat;
  session["bevatron.open"] = chat.id;
  if (panelCovers()) closePanels();
  showChat();
  scrollToEnd();
}

// Not on a phone, whose keyboard would come up.
const focusInput = () => matchMedia("(pointer: coarse)").matches || byId("input").focus();

function showTitle() {
  document.title = current.title ? `${current.title} – Bevatron` : "Bevatron";
}

function showChat() {
  const isCompletion = current.mode === "completion";
  hideCard();
  views.clear();
  byId("messages").replaceChildren();
  byId("messages").classList.toggle("completion", isCompletion);
  current.messages.forEach(showMessage);
  byId("chat-welcome").hidden = current.messages.length || isCompletion;
  byId("completion-welcome").hidden = current.messages.length || !isCompletion;
  byId("input").placeholder = isCompletion ? "A text for the model to continue" : "Message";
  for (const radio of document.getElementsByName("mode")) radio.checked = radio.value === current.mode;
  showTitle();
  showBusy();
  showList();
}

function showMessage(message) {
  const isAnswer = message.role === "assistant";
  const view = {
    message,
    isAnswer,
    text: createTextView(make("div.text")),
    thoughts: createTextView(make("div.text.reasoning")),
    trouble: make("div.trouble", { role: "alert", hidden: "" }),
    foot: make("div.foot"),
  };
  view.reasoning = make("details", { hidden: "" }, make("summary", {}, "Reasoning"), view.thoughts.box);
  view.root = make(`article.message.${message.role}`, { "aria-label": isAnswer ? "Answer" : "You" },
    ...(isAnswer ? [view.reasoning] : []), view.text.box, view.trouble, view.foot);
  view.root.view = view;
  views.set(message, view);
  byId("messages").append(view.root);
  updateView(view);
}

function updateView(view) {
  const { message, root, text, thoughts, foot } = view;
  const isBusy = view.isAnswer && !message.finish;
  const isPlain = !view.isAnswer || current.mode === "completion" || Boolean(view.asSource);
  const isFirstWhole = !isBusy && !foot.hasChildNodes();
  if (isFirstWhole) text.clear();
  text.update(message.content, message.tokens, isPlain);
  text.box.classList.toggle("as-is", isPlain);
  if (message.reasoning) thoughts.update(message.reasoning, message.reasoningTokens);
  view.reasoning.hidden = !message.reasoning;
  root.setAttribute("aria-busy", isBusy);
  root.classList.toggle("waiting", isBusy && !message.content);
  if (isBusy) return;
  for (const { box } of [text, thoughts]) box.querySelector(".token")?.setAttribute("tabindex", 0);
  if (!isFirstWhole) return;
  foot.append(toolsOf(view), view.isAnswer ? factsOf(message) : "");
  if (message.error) showTrouble(view);
}

function toolsOf(view) {
  const { message, text, isAnswer } = view;
  const source = iconButton("source", "As plain text", () => {
    view.asSource = !view.asSource;
    source.setAttribute("aria-pressed", view.asSource);
    text.clear();
    updateView(view);
  });
  const others = isAnswer ? [iconButton("again", "Another answer", () => rewind(message))]
    : [iconButton("edit", "Edit and send again", () => editMessage(view))];
  if (isAnswer && current.mode === "chat") others.push(source);
  return make("span.tools", {}, copyButton("Copy", () => message.content), ...others);
}

function factsOf({ usage, pieces, rate, wait, context, finish }) {
  const facts = [];
  const count = usage?.completion_tokens ?? pieces;
  if (count) facts.push(`${whole(count)} ${count === 1 ? "token" : "tokens"}`);
  if (rate) facts.push(`${rate.toFixed(rate < 10 ? 1 : 0)} per second`);
  if (wait !== undefined) facts.push(`first after ${(wait / 1000).toFixed(2)} s`);
  if (usage?.total_tokens && context) facts.push(`context ${whole(usage.total_tokens)} of ${whole(context)}`);
  if (finish === "length") facts.push("max tokens reached");
  if (finish === "stopped") facts.push("stopped");
  return facts.join(" · ");
}

function showTrouble({ message, trouble }) {
  const { text, noTemplate } = message.error;
  const again = (label, mode) => make("button", { onclick: () => {
    changeMode(mode);
    rewind(message);
  } }, label);
  trouble.append(make("p", {}, text), make("div.row", {},
    noTemplate ? again("Continue as raw completion", "completion") : "", again("Try again", current.mode)));
  trouble.hidden = false;
}

function changeMode(mode) {
  if (mode === current.mode) return;
  current.mode = settings.mode = mode;
  saveSettings();
  if (current.messages.length) keep(current);
  showChat();
}

// Views change no more often than the browser can draw them.
const stale = new Set();
let redrawTimer = 0, redrawCost = 0;

function redrawSoon(message) {
  stale.add(message);
  redrawTimer ||= setTimeout(redraw, Math.min(500, Math.max(16, 4 * redrawCost)));
}

function redraw() {
  const begin = now();
  redrawTimer = 0;
  for (const message of stale) if (views.has(message)) updateView(views.get(message));
  stale.clear();
  if (followsEnd) scrollToEnd();
  redrawCost = now() - begin;
}

// The view stays at the end if it was there.
let followsEnd = true, lastScroll = 0;

function scrollToEnd() {
  const scroller = byId("scroller");
  scroller.scrollTop = lastScroll = scroller.scrollHeight;
  followsEnd = true;
  byId("to-end").hidden = true;
}

function onScroll() {
  const { scrollTop, scrollHeight, clientHeight } = byId("scroller");
  const distance = scrollHeight - scrollTop - clientHeight;
  if (distance < 8) followsEnd = true;
  else if (scrollTop < lastScroll) followsEnd = false;
  lastScroll = scrollTop;
  byId("to-end").hidden = followsEnd || distance < 80;
  hideCard();
}

// ---- Requests

function requestFor({ mode, messages }) {
  const shared = { model: modelName(), stream: true, stream_options: { include_usage: true } };
  if (mode === "completion") {
    const prompt = messages.map(({ content }) => content).join("");
    const most = Math.min(completionTokens, Math.floor((contextSize() || Infinity) / 4));
    const asked = settings.probabilities && { logprobs: likeliest };
    return ["v1/completions", { ...shared, prompt, max_tokens: most, ...samplingOf(mode), ...asked }];
  }
  const told = messages.filter(({ content, error }) => content || !error)
    .map(({ role, content }) => ({ role, content }));
  if (settings.system) told.unshift({ role: "system", content: settings.system });
  const asked = settings.probabilities && { logprobs: true, top_logprobs: likeliest };
  return ["v1/chat/completions", { ...shared, messages: told, ...samplingOf(mode), ...asked }];
}

// What is thrown as {text, noTemplate} is shown as it is.
async function problemOf(response) {
  const body = await response.text();
  try {
    const { message, code } = JSON.parse(body).error;
    return { text: message, noTemplate: code === "no_chat_template" || /no chat template/i.test(message) };
  } catch {  // a proxy's page, not the server's answer
    return { text: `The server answered ${response.status} ${response.statusText}` };
  }
}

// The events of an event stream, parsed; ends at [DONE] or with the stream.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return void reader.cancel();
      yield JSON.parse(data);
    }
  }
}

// What takes events into the answer; returns why the answer ended, once it did.
function createReceiver(message, content, reasoning) {
  let part = content;
  return ({ error, usage, choices }) => {
    if (error) throw { text: error.message || "The server reports an error" };
    message.usage = usage ?? message.usage;
    const choice = choices?.[0];
    if (!choice) return null;
    const thought = choice.delta?.reasoning_content ?? choice.delta?.reasoning ?? "";
    const text = choice.delta?.content ?? choice.text ?? "";
    part = text ? content : thought ? reasoning : part;
    message.reasoning += thought;
    message.content += text;
    message.pieces += text || thought ? 1 : 0;
    reasoning.addText(thought);
    content.addText(text);
    tokensOf(choice).forEach(part.addToken);
    return choice.finish_reason;
  };
}

async function answer(chat) {
  const [path, body] = requestFor(chat);
  const message = {
    role: "assistant", content: "", reasoning: "", tokens: [], reasoningTokens: [], pieces: 0,
    model: body.model, context: contextSize(),
  };
  const abort = new AbortController();
  chat.messages.push(message);
  running.set(chat.id, abort);
  keep(chat);
  showMessage(message);
  scrollToEnd();
  showBusy();

  const aligners = [createAligner(message.tokens), createAligner(message.reasoningTokens)];
  const take = createReceiver(message, ...aligners);
  const begin = now();
  let first = 0, last = 0, saved = begin, finish = null;
  try {
    const headers = { "Content-Type": "application/json" };
    const request = { method: "POST", headers, body: JSON.stringify(body), signal: abort.signal };
    const response = await fetch(address(path), request);
    if (!response.ok) throw await problemOf(response);
    for await (const event of eventsOf(response)) {
      finish = take(event) ?? finish;
      last = now();
      if (message.pieces) first ||= last;
      redrawSoon(message);
      if (last < saved + 2000) continue;
      saved = last;
      store(chat);
    }
    if (!finish) throw {};
  } catch (error) {
    finish = abort.signal.aborted ? "stopped" : "error";
    const text = message.pieces ? "The connection was lost before the end." : "The server cannot be reached.";
    if (finish === "error") message.error = error.text ? error : { text };
    if (error.noTemplate) modelsWithoutTemplate.add(message.model);
  }
  aligners.forEach((aligner) => aligner.finish());
  message.finish = finish;
  if (first) message.wait = first - begin;
  const count = message.usage?.completion_tokens ?? message.pieces;
  if (last - first > 20) message.rate = (count - 1) / (last - first) * 1000;
  if (running.get(chat.id) === abort) running.delete(chat.id);
  redrawSoon(message);
  showBusy();
  showList();
  if (chats.includes(chat)) store(chat);
  pollMetrics();
}

function stopAnswer(chat) {
  running.get(chat.id)?.abort();
  running.delete(chat.id);
}

// Puts the conversation first in the list, and saves it.
function keep(chat) {
  chat.updated = Date.now();
  chat.title ||= chat.messages[0].content.trim().replace(/\s+/g, " ").slice(0, 80);
  chats = [chat, ...chats.filter(({ id }) => id !== chat.id)];
  showTitle();
  showList();
  store(chat);
}

function send() {
  const input = byId("input");
  const isCompletion = current.mode === "completion";
  const content = isCompletion ? input.value : input.value.trim();
  if (running.has(current.id) || !(content || (isCompletion && current.messages.length))) return;
  input.value = "";
  fitHeight(input);
  if (content) current.messages.push({ role: "user", content });
  showChat();
  answer(current);
}

// Replaces the messages from `message` on, and goes on from there.
function rewind(message, ...replacement) {
  const chat = current, former = current.messages;
  stopAnswer(chat);
  chat.messages = [...former.slice(0, former.indexOf(message)), ...replacement];
  showChat();
  answer(chat);
  focusInput();
  if (message.error && message === former.at(-1)) return;
  showToast("The messages from there on were replaced.", () => {
    stopAnswer(chat);
    chat.messages = former;
    keep(chat);
    if (chat === current) showChat();
  });
}

function editMessage({ message, text, foot }) {
  const close = () => {
    form.replaceWith(text.box);
    foot.hidden = false;
  };
  const submit = (event) => {
    event.preventDefault();
    if (area.value.trim()) rewind(message, { role: "user", content: area.value });
  };
  const onkeydown = (event) => {
    if (isSendKey(event)) submit(event);
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  };
  const area = make("textarea", { "aria-label": "Message", oninput: () => fitHeight(area), onkeydown });
  const form = make("form.edit", { onsubmit: submit }, area, make("div.row", {},
    make("button.main", {}, "Send"), make("button", { type: "button", onclick: close }, "Cancel")));
  area.value = message.content;
  text.box.replaceWith(form);
  foot.hidden = true;
  fitHeight(area);
  area.focus();
}

// ---- The list of conversations

function showList() {
  const list = byId("chats");
  if (list.querySelector("input")) return;  // a name is being typed
  const focused = list.contains(document.activeElement) && document.activeElement.dataset.key;
  list.replaceChildren(...chats.map(listItem));
  if (focused) list.querySelector(`[data-key="${focused}"]`)?.focus();
}

function listItem(chat) {
  const { id, title } = chat;
  const isOpen = id === current?.id ? "true" : undefined;
  const buttons = [
    make("button.title", { title, "aria-current": isOpen, onclick: () => openChat(chat) }, title || "Untitled"),
    iconButton("edit", "Rename", () => rename(item, chat)),
    iconButton("save", "Export as JSON", () => exportChat(chat)),
    iconButton("delete", "Delete", () => remove(chat)),
  ];
  buttons.forEach((button, i) => { button.dataset.key = id + i; });
  const item = make(running.has(id) ? "li.busy" : "li", {}, buttons[0],
    make("span.tools", {}, ...buttons.slice(1)));
  return item;
}

function rename(item, chat) {
  const onblur = () => {
    chat.title = field.value.trim() || chat.title;
    store(chat);
    item.remove();
    showList();
    showTitle();
  };
  const onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.stopPropagation();
    if (event.key === "Escape") field.value = "";
    field.blur();
  };
  const field = make("input", { "aria-label": "Name", maxlength: 80, onkeydown, onblur });
  field.value = chat.title;
  item.replaceChildren(field);
  field.select();
}

async function exportChat(chat) {
  if (!chat.messages) await loadMessages(chat);
  const href = URL.createObjectURL(new Blob([JSON.stringify(chat, null, 2)]));
  const name = chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation";
  make("a", { href, download: `${name}.json` }).click();
}

async function remove(chat) {
  stopAnswer(chat);
  if (!chat.messages) await loadMessages(chat);
  chats = chats.filter((one) => one !== chat);
  await transact((...stores) => stores.forEach((one) => one.delete(chat.id)));
  if (chat === current) newChat();
  showList();
  showToast("The conversation was deleted.", () => {
    store(chat);
    chats.push(chat);
    sortList();
  });
}

function sortList() {
  chats.sort((a, b) => b.updated - a.updated);
  showList();
}

// Reads it again: another tab may have changed it.
async function readList() {
  const stored = await transact((list) => list.getAll()) ?? chats;
  const inUse = chats.filter(({ id }) => id === current?.id || running.has(id));
  chats = stored.map((entry) => inUse.find(({ id }) => id === entry.id) ?? entry);
  sortList();
}

// ---- Notices, panels, theme

let toastTimer = 0;

function showToast(text, undo) {
  const close = () => byId("toast").replaceChildren();
  const button = make("button", { onclick: () => {
    close();
    undo();
  } }, "Undo");
  byId("toast").replaceChildren(text, undo ? button : "");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(close, 8000);
}

const panels = ["sidebar", "settings"];
const panelCovers = () => getComputedStyle(byId("backdrop")).display !== "none";

// A panel that covers the page takes the keys until it is closed.
function togglePanel(name) {
  const opener = byId(`open-${name}`), panel = byId(name);
  const hadFocus = panel.contains(document.activeElement);
  const shows = document.body.classList.toggle(name);
  opener.setAttribute("aria-expanded", shows);
  byId("main").inert = panelCovers();
  if (shows) panel.querySelector("button").focus();
  else if (hadFocus) opener.focus();
}

const closePanels = () => panels.filter((name) => document.body.classList.contains(name)).forEach(togglePanel);

function showTheme() {
  document.documentElement.dataset.theme = settings.theme;
  byId("theme").title = `Theme: ${settings.theme}`;
}

function nextTheme() {
  const [system, other] = matchMedia("(prefers-color-scheme: dark)").matches ? ["dark", "light"] : ["light", "dark"];
  settings.theme = { auto: other, [other]: system, [system]: "auto" }[settings.theme];
  saveSettings();
  showTheme();
}

function fitHeight(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

function showBusy() {
  byId("send").hidden = running.has(current.id);
  byId("stop").hidden = !running.has(current.id);
}

// ---- The server at a glance

let models = [];
const modelName = () => settings.model;
const contextSize = () => models.find(({ id }) => id === modelName())?.max_model_len;

async function loadModels() {
  const response = await fetch(address("v1/models"));
  if (!response.ok) throw await problemOf(response);
  models = (await response.json()).data;
  if (!models.some(({ id }) => id === settings.model)) settings.model = models[0]?.id;
  const select = byId("model"), label = byId("model-name");
  select.replaceChildren(...models.map(({ id }) => make("option", { value: id }, id)));
  select.hidden = models.length < 2;
  label.hidden = !select.hidden;
  label.textContent = modelName() ?? "No model";
  label.title = `Context of ${contextSize() ?? "unknown"} tokens`;
  showSettings();
}

// Sums over all labels: {generation_tokens_total: 1234, ...}
function parseMetrics(text) {
  const values = {};
  for (const [, name, value] of text.matchAll(/^bevatron:(\w+)(?:\{.*\})? +(\S+)/gm)) {
    values[name] = (values[name] ?? 0) + Number(value);
  }
  return values;
}

const pollEvery = 2000;
const samples = [];  // of the last two minutes: {time, values}
let pollTimer = 0, polling = false;

async function pollMetrics() {
  if (document.hidden || polling) return;
  clearTimeout(pollTimer);
  polling = true;
  try {
    const response = await fetch(address("metrics"), { signal: AbortSignal.timeout(5000) });
    if (response.ok) showMetrics(parseMetrics(await response.text()));
    if (!models.length || !byId("offline").hidden) await loadModels();
    byId("offline").hidden = true;
  } catch {
    byId("offline").hidden = false;
    samples.length = 0;
  }
  polling = false;
  pollTimer = setTimeout(pollMetrics, pollEvery);
}

function showMetrics(values) {
  const time = now(), before = samples.at(-1);
  // A server that was started again counts from zero; a page that was hidden has a gap.
  if (before && (values.generation_tokens_total < before.values.generation_tokens_total ||
      time - before.time > 5 * pollEvery)) samples.length = 0;
  samples.push({ time, values });
  if (samples.length > 61) samples.shift();

  const recent = (name) => values[name] - samples[0].values[name];
  const rates = (name) => samples.slice(1).map((one, i) =>
    (one.values[name] - samples[i].values[name]) / (one.time - samples[i].time) * 1000);
  const asked = "prefix_cache_queries_total", hits = "prefix_cache_hits_total";
  const written = rates("generation_tokens_total"), read = rates("prompt_tokens_total").at(-1);
  for (const [name, value, format] of [
    ["running", values.num_requests_running, whole],
    ["waiting", values.num_requests_waiting, whole],
    ["cache", values.kv_cache_usage_perc, percent],
    ["reused", recent(asked) ? recent(hits) / recent(asked) : values[hits] / values[asked], percent],
    ["speed", written.at(-1), whole],
  ]) byId(`stat-${name}`).textContent = Number.isFinite(value) ? format(value) : "–";
  byId("speed").title = `Generated tokens per second; prompts: ${whole(read || 0)} per second`;

  const highest = Math.max(1, ...written), left = 60 - written.length;
  const points = written.map((rate, i) => `${left + i},${(19 - 17 * rate / highest).toFixed(1)}`).join(" ");
  byId("spark").firstChild.setAttribute("points", points && `${left},21 ${points} 59,21`);
}

// ---- Keys and buttons

const isSendKey = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

function onKey(event) {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    newChat();
  }
  if (event.key !== "Escape") return;
  hideCard();
  if (panelCovers()) closePanels();
  else if (running.has(current.id)) stopAnswer(current);
  else if (byId("settings").contains(document.activeElement)) closePanels();
}

function connect() {
  const on = (id, type, action) => byId(id).addEventListener(type, action);
  const clicks = {
    send, new: newChat, theme: nextTheme, reset: resetSettings, backdrop: closePanels, "to-end": scrollToEnd,
    stop: () => {
      stopAnswer(current);
      focusInput();
    },
  };
  for (const [id, action] of Object.entries(clicks)) on(id, "click", action);
  for (const name of panels) {
    for (const verb of ["open", "close"]) on(`${verb}-${name}`, "click", () => togglePanel(name));
  }
  for (const radio of document.getElementsByName("mode")) {
    radio.addEventListener("change", () => changeMode(radio.value));
  }
  on("input", "input", () => fitHeight(byId("input")));
  on("input", "keydown", (event) => {
    if (!isSendKey(event)) return;
    event.preventDefault();
    send();
  });
  on("scroller", "scroll", onScroll);
  for (const type of ["pointerover", "focusin"]) {
    on("messages", type, ({ target }) => { if (target.matches(".token")) showCard(target); });
  }
  for (const type of ["pointerout", "focusout"]) on("messages", type, hideCard);
  on("messages", "keydown", moveAmongTokens);

  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", () => {
    if (running.has(current.id)) store(current);
    if (document.hidden) return;
    pollMetrics();
    readList();
  });
  addEventListener("resize", () => {
    hideCard();
    byId("main").inert = panelCovers();
    if (followsEnd) scrollToEnd();
  });
}

async function start() {
  Object.assign(settings, JSON.parse(local["bevatron.settings"] || "{}"));
  for (const node of document.querySelectorAll("[data-icon]")) node.prepend(icon(node.dataset.icon));
  showTheme();
  buildSettings();
  pollMetrics();
  database = await openDatabase().catch(() => null);
  await readList();
  const last = chats.find(({ id }) => id === session["bevatron.open"]);
  if (last) await openChat(last);
  else newChat();
  connect();
  document.body.dataset.ready = "";
}

start();
