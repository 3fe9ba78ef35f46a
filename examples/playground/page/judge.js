// Checks a limit that is typed or pasted, with the filter's own parser, in a worker. If a text takes too long or
// crashes the parser, the worker is ended and the page continues.

const TIMEOUT_MS = 10000;
let worker = null;
let newest = 0;
let last = Promise.resolve();

// The parser's result for a text; null if another call, or `discard`, came after this one.
export function judgeInWorker(text) {
  const number = ++newest;
  const result = last.then(() => number === newest ? parse(text) : null);
  last = result.then(judged => number === newest ? judged : null);
  return last;
}

// Discards the pending result.
export const discard = () => { newest += 1; };

// Resolves when all texts were checked.
export const settled = () => last;

function parse(text) {
  worker ??= new Worker('worker.js', { type: 'module' });
  return new Promise(resolve => {
    const fail = message => { worker.terminate(); worker = null; finish({ rules: [], notes: [], errors: [{ path: '', message }] }); };
    const timer = setTimeout(() => fail(`the parser did not finish within ${TIMEOUT_MS / 1000} s`), TIMEOUT_MS);
    const finish = judged => { clearTimeout(timer); resolve(judged); };
    worker.onmessage = ({ data: { judged, wrong, broken } }) => judged ? finish(judged) : fail(wrong ?? `the parser failed: ${broken}`);
    worker.onerror = () => fail('the parser did not load: load the page again');
    worker.postMessage({ text });
  });
}
