// ELMo in the browser: ONNX Runtime Web runs the graph of export-onnx, and this file draws.

const FILES = new URL("files/", import.meta.url);
const RUNTIME = "ort.wasm.min.mjs";
const WASM = ["ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"];
const FOR_MODEL = ["elmo.onnx", RUNTIME, ...WASM, "tokenizer.json", "words.json", "words.bin"];
const TEXT =
  "They sat on the bank of the river. The bank lent money to the company. He swam to the bank of the lake.";
const OWN_TEXT = {
  bank: "We walked along the bank of the river.", play: "They play in the street.",
  bat: "The bat flew out of the window.", spring: "We met in the spring of 1999.",
  match: "He watched the match on Sunday.", light: "She saw a light in the window.",
  bear: "She could not bear the pain.",
  plant: "The plant produces cars and trucks.",
  right: "You must turn right after the church.",
  ring: "She lost the ring that he had given her.",
  watch: "They watch the birds from the window.",
  well: "The farmer drew a bucket from the well.",
};

const $ = (id) => document.getElementById(`elmo-${id}`);
const make = (tag, attributes = {}, ...children) => {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in found) found[name] = value;
    else found.setAttribute(name, value);
  }
  found.append(...children);
  return found;
};
const get = async (name) => {
  const response = await fetch(new URL(name, FILES));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response;
};
const megabytes = (bytes) => (bytes < 1e5 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

// ---- Text to character ids, as tokenizers/penn.py and tokenizers/characters.py do.

export function tokenize(text, rules) {
  for (const [pattern, flags, rewrite] of rules) text = text.replace(new RegExp(pattern, flags), rewrite);
  return text.split("\n").map((line) => line.split(" ").filter(Boolean)).filter((line) => line.length);
}

const ROW = 50, BEGIN_WORD = 259, END_WORD = 260, PAD = 261; // each id is a code plus 1

function characterIds(tokens, into, start) {
  tokens.forEach((token, k) => {
    const bytes = new TextEncoder().encode(token).slice(0, ROW - 2);
    const row = into.subarray(start + k * ROW, start + (k + 1) * ROW).fill(PAD);
    row[0] = BEGIN_WORD;
    bytes.forEach((byte, i) => { row[i + 1] = byte + 1; });
    row[bytes.length + 1] = END_WORD;
  });
}

// ---- The model.

const model = { session: null, ort: null, rules: null, words: null };

async function loadModel() {
  const ort = model.ort = await import(new URL(RUNTIME, FILES));
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = { mjs: new URL(WASM[0], FILES).href, wasm: new URL(WASM[1], FILES).href };
  const [graph, rules, words, softmax] = await Promise.all([
    get("elmo.onnx").then((r) => r.arrayBuffer()),
    get("tokenizer.json").then((r) => r.json()),
    get("words.json").then((r) => r.json()),
    get("words.bin").then((r) => r.arrayBuffer()),
  ]);
  model.session = await ort.InferenceSession.create(new Uint8Array(graph));
  model.rules = rules;
  const count = words.length;
  // words.bin: kernel in int8, then in float32 the scales, the biases and two states.
  const width = (softmax.byteLength - 8 * count) / (count + 8);
  const floats = new Float32Array(softmax, count * width);
  model.words = {
    words, width,
    kernel: new Int8Array(softmax, 0, count * width),
    scales: floats.subarray(0, count),
    biases: floats.subarray(count, 2 * count),
    afterBegin: floats.subarray(2 * count, 2 * count + width),
    afterEnd: floats.subarray(2 * count + width),
  };
}

/** Return for each sentence its tokens and layers: layers[j][k] is the vector of token k. */
async function embed(sentences) {
  const longest = Math.max(...sentences.map((s) => s.length));
  const ids = new Int32Array(sentences.length * longest * ROW);
  sentences.forEach((tokens, b) => characterIds(tokens, ids, b * longest * ROW));
  const input = new model.ort.Tensor("int32", ids, [sentences.length, longest, ROW]);
  const { layers: { data, dims: [, , count, width] } } = await model.session.run({ ids: input });
  return sentences.map((tokens, b) => ({
    tokens,
    layers: Array.from({ length: count }, (_, j) => tokens.map((_, k) => {
      const at = ((b * longest + k) * count + j) * width;
      return data.slice(at, at + width);
    })),
  }));
}

// ---- Numbers.

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const norm = (a) => Math.sqrt(dot(a, a));
const cosine = (a, b) => dot(a, b) / (norm(a) * norm(b) || 1);
const softmax = (logits) => {
  const top = logits.reduce((a, b) => Math.max(a, b));
  const exps = logits.map((x) => Math.exp(x - top));
  const sum = exps.reduce((a, b) => a + b);
  return exps.map((x) => x / sum);
};
const mixed = (layers, k, { scalars, gamma }) => {
  const weights = softmax(scalars);
  return layers[0][k].map((_, i) => gamma * weights.reduce((sum, s, j) => sum + s * layers[j][k][i], 0));
};

/** Return the probabilities of the frequent words, given a state of one direction. */
function probabilities(state) {
  const { words, width, kernel, scales, biases } = model.words;
  return softmax(Float64Array.from(words, (_, w) =>
    scales[w] * dot(state, kernel.subarray(w * width, (w + 1) * width)) + biases[w]));
}

/** Return the forward and backward probabilities at place k, which do not read token k. */
function predict({ tokens, layers }, k) {
  const { width, afterBegin, afterEnd } = model.words, top = layers.at(-1);
  return {
    forward: probabilities(k ? top[k - 1].subarray(0, width) : afterBegin),
    backward: probabilities(k + 1 < tokens.length ? top[k + 1].subarray(width) : afterEnd),
  };
}

const best = (values, count) => [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, count);

// ---- 1. Similarities and the mix.

const state = { sentences: [], chosen: [0, 0], mix: { scalars: [0, 0, 0], gamma: 1 } };

function similarities() {
  const [b, k] = state.chosen, own = state.sentences[b];
  const vector = mixed(own.layers, k, state.mix);
  return state.sentences.map(({ tokens, layers }) => tokens.map((_, i) => [
    ...layers.map((layer, j) => cosine(own.layers[j][k], layer[i])),
    cosine(vector, mixed(layers, i, state.mix)),
  ]));
}

function heat(value) {
  const cell = make("td", {}, value.toFixed(2).replace(/^-(?=0\.00$)/, "").replace("-", "−"));
  cell.style.background = `rgba(var(--${value < 0 ? "unlike" : "like"}), ${(0.6 * Math.min(1, Math.abs(value))).toFixed(3)})`;
  return cell;
}

function drawSimilar() {
  const [b, k] = state.chosen, own = state.sentences[b];
  const vector = mixed(own.layers, k, state.mix);
  $("chosen").replaceChildren("Similarity to ", make("b", {}, own.tokens[k]), ` in sentence ${b + 1}. The length of its vector in the mix is ${norm(vector).toFixed(2)}.`);
  const focused = document.activeElement?.dataset?.at;
  $("tables").replaceChildren(...similarities().map((rows, s) => make("table", { className: "grid" },
    make("caption", {}, `Sentence ${s + 1}`),
    make("tr", {}, make("td"), ...["layer 0", "layer 1", "layer 2", "mix"].map((x) => make("th", { scope: "col" }, x))),
    ...rows.map((values, i) => {
      const isChosen = s === b && i === k;
      const button = make("button", { className: "token", "aria-pressed": isChosen, "data-at": `${s},${i}` }, state.sentences[s].tokens[i]);
      button.onclick = () => choose(s, i);
      return make("tr", { className: isChosen ? "is-chosen" : "" }, make("th", { scope: "row" }, button), ...values.map(heat));
    }))));
  if (focused) document.querySelector(`[data-at="${focused}"]`)?.focus();
}

function choose(s, i) {
  state.chosen = [s, i];
  drawSimilar();
  drawNext();
}

// Up and down move between the words of the tables.
$("tables").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || !event.target.dataset.at) return;
  const all = [...$("tables").querySelectorAll(".token")];
  all[all.indexOf(event.target) + step]?.focus();
  event.preventDefault();
});

function makeSliders() {
  const rows = [["w_0", 0], ["w_1", 1], ["w_2", 2], ["gamma", null]].flatMap(([name, j]) => {
    const isGamma = j === null, id = `elmo-${name}`;
    const input = make("input", { type: "range", id, min: isGamma ? 0.1 : -4, max: isGamma ? 3 : 4, step: 0.1, value: isGamma ? 1 : 0 });
    const output = make("output", { htmlFor: id });
    input.oninput = () => {
      if (isGamma) state.mix.gamma = Number(input.value);
      else state.mix.scalars[j] = Number(input.value);
      drawWeights();
      if (state.sentences.length) drawSimilar();
    };
    return [make("label", { htmlFor: id }, isGamma ? "gamma" : `layer ${j}`), input, output];
  });
  $("mix").replaceChildren(make("div", { className: "sliders" }, ...rows));
  drawWeights();
}

function drawWeights() {
  const weights = softmax(state.mix.scalars);
  const texts = [...weights.map((s, j) => `s_${j} = ${s.toFixed(2)}`), `${state.mix.gamma.toFixed(1)}`];
  $("mix").querySelectorAll("output").forEach((output, i) => { output.value = texts[i]; });
}

let turn = 0;
async function readText() {
  const own = ++turn, sentences = tokenize($("text").value, model.rules);
  if (!sentences.length) return;
  const found = await embed(sentences);
  if (own !== turn) return; // the text changed while the model ran
  const [b, k] = state.chosen;
  state.sentences = found;
  if (!(k < found[b]?.tokens.length)) state.chosen = [0, 0];
  drawSimilar();
  drawNext();
}

// ---- 2. Senses.

const senses = { index: null, planes: {}, word: "bank", layer: 2, point: null, own: null };

async function loadSenses() {
  const [index, buffer] = await Promise.all([
    get("senses.json").then((r) => r.json()), get("senses.bin").then((r) => r.arrayBuffer()),
  ]);
  const floats = new Float32Array(buffer);
  let at = 0;
  const take = (width) => floats.subarray(at, at += width);
  for (const [word, { examples, width }] of Object.entries(index)) {
    senses.planes[word] = [0, 1, 2].map(() => ({
      vectors: examples.map(() => take(width)), mean: take(width), axes: [take(width), take(width)],
    }));
  }
  senses.index = index;
}

const namesOf = (word) => [...new Set(senses.index[word].examples.map((e) => e.sense))];
const project = (vector, { mean, axes }) => {
  const centred = vector.map((x, i) => x - mean[i]);
  return axes.map((axis) => dot(centred, axis));
};

/** Return the examples nearest to a vector in one layer, without the example `skip`. */
function neighbours(word, layer, vector, skip = null) {
  const values = senses.planes[word][layer].vectors.map((other, i) => (i === skip ? -Infinity : cosine(vector, other)));
  return best(values, 3).map((i) => ({ example: senses.index[word].examples[i], number: i, cosine: values[i] }));
}

const SVG = (tag, attributes, ...children) => {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  found.append(...children);
  return found;
};
const SHAPES = ["M-6,0a6,6 0 1,0 12,0a6,6 0 1,0 -12,0", "M-5.5,-5.5h11v11h-11z", "M0,-7l7,12h-14z"];
const STAR = "M0,-11l3,7.5 8,.5 -6,5 2,8 -7,-4.5 -7,4.5 2,-8 -6,-5 8,-.5z";

function drawSenses() {
  const { index, word, layer, point, own } = senses, { examples, preset } = index[word];
  const plane = senses.planes[word][layer], names = namesOf(word);
  const button = (text, isOn, onclick) => make("button", { className: "choice", "aria-pressed": isOn, onclick }, text);
  const pick = (changes) => { Object.assign(senses, { point: null }, changes); drawSenses(); };
  const withFocus = document.activeElement?.textContent;
  $("words-of-senses").replaceChildren("Word:", ...Object.keys(index).map((w) => button(w, w === word, () => {
    $("own").value = OWN_TEXT[w] ?? "";
    pick({ word: w, own: null });
    readOwn();
  })));
  $("layers-of-senses").replaceChildren("Layer:", ...[0, 1, 2].map((j) => button(`${j}`, j === layer, () => pick({ layer: j }))));
  for (const b of $("senses").querySelectorAll(".choice")) if (b.textContent === withFocus) b.focus();

  const counts = plane.vectors.map((v, i) => neighbours(word, layer, v, i)[0].example.sense === examples[i].sense);
  $("legend").replaceChildren(...names.map((name, s) => make("span", { className: `legend s${s}` }, `${"●■▲"[s]} ${name}`)),
    ...(own ? [make("span", { className: "legend" }, "★ your sentence")] : []),
    make("p", {}, layer ? `${counts.filter(Boolean).length} of ${examples.length} sentences have a nearest neighbour with the same sense (${preset}).`
      : "Layer 0 reads only the characters, so all points are in the same place."));

  // In layer 0 the vectors differ only by rounding: the smallest scale keeps them in one place.
  const all = plane.vectors.map((v) => project(v, plane)), mine = own && project(own.layers[layer], plane);
  const shown = mine ? [...all, mine] : all;
  const W = Math.min(560, $("plane").clientWidth || 560), H = 340, M = 26;
  const scale = [0, 1].map((a) => {
    const values = shown.map((p) => p[a]), low = Math.min(...values), high = Math.max(...values);
    const size = a ? H : W, span = Math.max(high - low, 3);
    return (x) => size / 2 + (x - (low + high) / 2) / span * (size - 2 * M);
  });
  const describe = (i) => `${examples[i].sense}: ${examples[i].tokens.join(" ")}`;
  const marks = all.map((p, i) => {
    const mark = SVG("path", {
      d: SHAPES[names.indexOf(examples[i].sense)], tabindex: 0, role: "button", "aria-label": describe(i),
      class: `point s${names.indexOf(examples[i].sense)}${i === point ? " is-chosen" : ""}`,
      transform: `translate(${scale[0](p[0]).toFixed(1)},${(H - scale[1](p[1])).toFixed(1)})`,
    }, SVG("title", {}, describe(i)));
    const show = () => { senses.point = i; drawNear(); };
    mark.onclick = mark.onfocus = show;
    return mark;
  });
  if (mine) marks.push(SVG("path", { d: STAR, class: "point own", transform: `translate(${scale[0](mine[0]).toFixed(1)},${(H - scale[1](mine[1])).toFixed(1)})` }, SVG("title", {}, "your sentence")));
  $("plane").replaceChildren(SVG("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": `${word} in layer ${layer}` }, ...marks));
  $("own-row").hidden = preset !== "elmo_mini_en" || !model.session;
  drawNear();
}

function drawNear() {
  const { index, word, layer, point, own } = senses, { examples } = index[word], names = namesOf(word);
  const marked = (tokens, place) => tokens.flatMap((t, i) => [i === place ? make("b", {}, t) : t, " "]);
  const item = ({ example, cosine: c }) => make("li", {}, `${c.toFixed(2)} `,
    make("b", { className: `s${names.indexOf(example.sense)}` }, example.sense), ": ", ...marked(example.tokens, example.place));
  $("plane").querySelectorAll(".point:not(.own)").forEach((mark, i) => mark.classList.toggle("is-chosen", i === point));
  if (point === null && !own) {
    const problem = model.session && index[word].preset === "elmo_mini_en" && $("own").value ? `Your sentence needs the word "${word}".` : "";
    $("near").replaceChildren(make("p", {}, problem || "Choose a point to see its sentence and its nearest neighbours."));
    return;
  }
  const isOwn = point === null;
  const vector = isOwn ? own.layers[layer] : senses.planes[word][layer].vectors[point];
  const { tokens, place } = isOwn ? own : examples[point];
  $("near").replaceChildren(
    make("p", {}, isOwn ? "★ " : "", ...marked(tokens, place)), make("p", {}, "Nearest neighbours by cosine:"),
    make("ol", {}, ...neighbours(word, layer, vector, isOwn ? null : point).map(item)));
}

function makeSenses() {
  $("senses").replaceChildren(
    make("div", { className: "choices", id: "elmo-words-of-senses" }), make("div", { className: "choices", id: "elmo-layers-of-senses" }),
    make("div", { id: "elmo-own-row", hidden: true }, make("label", { htmlFor: "elmo-own" }, "Your sentence with the word"),
      make("input", { type: "text", id: "elmo-own", maxLength: 200, value: OWN_TEXT[senses.word], oninput: later(readOwn) })),
    make("div", { id: "elmo-legend" }), make("div", { id: "elmo-plane" }), make("div", { id: "elmo-near", className: "near", role: "status" }));
  $("senses").hidden = false;
  drawSenses();
}

async function readOwn() {
  if (!model.session) return;
  const word = senses.word, tokens = tokenize($("own").value, model.rules).find((t) => t.includes(word));
  const [found] = tokens && senses.index[word].preset === "elmo_mini_en" ? await embed([tokens]) : [];
  if (word !== senses.word) return;
  const place = tokens?.indexOf(word);
  senses.own = found ? { tokens, place, layers: found.layers.map((layer) => layer[place]) } : null;
  senses.point = null;
  drawSenses();
}

// ---- 3. What comes next.

function drawNext() {
  const sentence = state.sentences[state.chosen[0]], { words } = model.words;
  const cell = (values, token) => make("td", {}, ...best(values, 3).map((w) => {
    const word = make("span", { className: `word${words[w] === token ? " is-right" : ""}` }, `${words[w]} ${values[w].toFixed(2)}`);
    word.style.background = `rgba(var(--like), ${(0.08 + 0.5 * values[w]).toFixed(3)})`;
    return word;
  }));
  $("next").replaceChildren(make("table", { className: "grid next" },
    make("tr", {}, ...["from the left", "token", "from the right"].map((x) => make("th", { scope: "col" }, x))),
    ...sentence.tokens.map((token, k) => {
      const { forward, backward } = predict(sentence, k);
      return make("tr", { className: k === state.chosen[1] ? "is-chosen" : "" }, cell(forward, token), make("td", {}, token), cell(backward, token));
    })));
  $("words").textContent = `${words.length}`;
}

// ---- The page.

function later(action) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(action, 250); };
}

/** Return the size of each file by the server, or null for a file that does not exist. */
const sizeOf = async (name) => {
  const response = await fetch(new URL(name, FILES), { method: "HEAD" });
  return response.ok ? Number(response.headers.get("content-length")) : null;
};

/** Write the sentences into the address, so that a link to them can be shared. */
function keepText() {
  const address = new URL(location);
  address.searchParams.set("text", $("text").value);
  history.replaceState(null, "", address);
}

async function start() {
  $("load").disabled = true;
  $("status").textContent = "Loading …";
  try {
    await loadModel();
    $("text").value = new URLSearchParams(location.search).get("text") || TEXT;
    state.chosen = [0, 4];
    await readText();
  } catch (error) {
    $("status").textContent = `The biLM cannot run here (${error.message}). The senses above need only JavaScript.`;
    return;
  }
  $("text").oninput = later(() => { keepText(); readText(); });
  for (const id of ["similar", "mix", "next"]) $(id).hidden = false;
  $("load").hidden = true;
  $("status").textContent = "The biLM runs.";
  await readOwn();
}

/** Write the numbers of the page into it, for the test. */
async function check() {
  await start();
  const slide = (name, value) => { $(name).value = value; $(name).dispatchEvent(new Event("input")); };
  const plain = similarities();
  ["w_0", "w_1", "w_2", "gamma"].forEach((name, i) => slide(name, [1, -0.5, 0.3, 2][i]));
  const found = {
    hosts: [...new Set(performance.getEntriesByType("resource").map((entry) => new URL(entry.name).host))],
    status: $("status").textContent,
    sentences: state.sentences.map(({ tokens, layers }) => ({ tokens, layers: layers.map((l) => l.map((v) => [...v].map((x) => +x.toFixed(4)))) })),
    chosen: state.chosen, plain, mix: similarities(),
    next: state.sentences[0].tokens.map((_, k) => {
      const at = predict(state.sentences[0], k);
      return [at.forward, at.backward].map((p) => best(p, 3).map((w) => [model.words.words[w], p[w]]));
    }),
    own: { tokens: senses.own.tokens, near: neighbours(senses.word, 2, senses.own.layers[2]).map((n) => [n.number, n.cosine]) },
    tokenized: tokenize(new URLSearchParams(location.search).get("check"), model.rules),
  };
  document.body.append(make("script", { type: "application/json", id: "elmo-check" }, JSON.stringify(found)));
}

async function open() {
  makeSliders();
  try {
    await loadSenses();
    makeSenses();
    $("fallback").hidden = true;
  } catch (error) {
    $("status").textContent = "This copy of the site lacks the files of docs/demo/build.py. The pictures and the code below do not need them.";
    return;
  }
  const sizes = await Promise.all(FOR_MODEL.map(sizeOf));
  if (typeof WebAssembly !== "object" || sizes.includes(null)) {
    const why = sizes.includes(null) ? "This copy of the site was built without npm" : "This browser has no WebAssembly";
    $("status").textContent = `${why}, so the biLM cannot run here. The senses above need only JavaScript.`;
    return;
  }
  $("load").textContent = `Start (loads ${megabytes(sizes.reduce((a, b) => a + b))})`;
  $("load").disabled = false;
  $("load").onclick = start;
  $("status").textContent = "";
  const query = new URLSearchParams(location.search);
  if (query.has("check")) await check();
  else if (query.has("text")) await start();
}

open();
