// Checks texts and runs plans, one after the other, outside the page's thread. The page cancels by ending the worker.
import init, { judge, simulate } from './weir_playground.js';

let panic = '';
globalThis.weirProgress = part => postMessage({ part });
globalThis.weirPanicked = message => { panic = message; };
const ready = init({ module_or_path: 'weir_playground_bg.wasm' }).then(() => null, error => error);

onmessage = async ({ data: { text, plan, seed, scenario } }) => {
  const missing = await ready;
  if (missing) { postMessage({ wrong: `The simulator did not load: ${missing}. Load the page again.` }); return; }
  try {
    if (text !== undefined) { postMessage({ judged: JSON.parse(judge(text)) }); return; }
    const began = performance.now();
    const recorded = simulate(plan, seed, scenario);
    postMessage({ recorded, took: performance.now() - began });
  } catch (error) {
    // An error in a plan is thrown as text. Anything else is a panic of the simulation, which is a finding.
    postMessage(typeof error === 'string' ? { wrong: error } : { broken: panic || `It ended without a message, as it does when memory is exhausted (${error}).` });
  }
};
