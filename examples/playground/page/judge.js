// Checks a limit that is typed or pasted, with the filter's own parser, in a worker. If a text takes too long or
// crashes the parser, the worker is ended and the page continues.

const PATIENCE_MS = 10000;
let worker = null;
let newest = 0;
let last = Promise.resolve();

// The parser's result for a text; null if another call, or `forget`, came after this one.
export function judgeAway(text) {
  const mine = ++newest;
  const answer = last.then(() => mine === newest ? ask(text) : null);
  last = answer.then(judged => mine === newest ? judged : null);
  return last;
}

// Discards the pending result.
export const forget = () => { newest += 1; };

// Resolves when all texts were checked.
export const settled = () => last;

function ask(text) {
  worker ??= new Worker('worker.js', { type: 'module' });
  return new Promise(resolve => {
    const ends = says => { worker.terminate(); worker = null; over({ rules: [], notes: [], errors: [{ path: '', says }] }); };
    const timer = setTimeout(() => ends(`the parser did not finish within ${PATIENCE_MS / 1000} s`), PATIENCE_MS);
    const over = judged => { clearTimeout(timer); resolve(judged); };
    worker.onmessage = ({ data: { judged, wrong, broken } }) => judged ? over(judged) : ends(wrong ?? `the parser failed: ${broken}`);
    worker.onerror = () => ends('the parser did not load: load the page again');
    worker.postMessage({ text });
  });
}
