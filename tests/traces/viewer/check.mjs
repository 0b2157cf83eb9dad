// Loads a trace into a viewer that others wrote (speedscope, its real page in headless Chromium) and
// checks that the expected processes, threads and slices are shown. Knows nothing of how traces are
// written. Offline after `npm ci` in this folder; Chromium itself comes from the system.
//
//   node tests/traces/viewer/check.mjs TRACE.json --expect-process "rank 0" --expect-thread compute
//        --expect-slice 0F0 --expect-slice 0F3+0B1 [--screenshot FILE.png]
//
// Every --expect-* may be repeated. CHROMIUM names another browser than /usr/bin/chromium. A thread's
// first 300 slices, the longest first, are looked at: a small trace does.
// Exit code 0: all shown; 1: something is missing, or the viewer complained; 2: wrong usage.

import {createServer} from 'node:http';
import {mkdtemp, readFile, rm} from 'node:fs/promises';
import {tmpdir} from 'node:os';
import {dirname, extname, join, normalize} from 'node:path';
import {fileURLToPath} from 'node:url';
import {parseArgs} from 'node:util';

import {chromium} from 'playwright-core';

const folder = dirname(fileURLToPath(import.meta.url));
const viewer = join(folder, 'node_modules', 'speedscope', 'dist', 'release');
const patience = 30_000;
const browserFlags = [
  '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--enable-unsafe-swiftshader',
];

function readArguments() {
  const {values, positionals} = parseArgs({
    allowPositionals: true,
    options: {
      'expect-process': {type: 'string', multiple: true, default: []},
      'expect-thread': {type: 'string', multiple: true, default: []},
      'expect-slice': {type: 'string', multiple: true, default: []},
      'screenshot': {type: 'string'},
    },
  });
  if (positionals.length !== 1) throw new Error('exactly one trace file is needed');
  return {
    trace: positionals[0],
    processes: values['expect-process'],
    threads: values['expect-thread'],
    slices: values['expect-slice'],
    screenshot: values.screenshot,
  };
}

/** Serves the viewer and, as /trace.json, the trace; speedscope fetches nothing from file URLs. */
async function serve(trace) {
  const types = {'.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css'};
  const server = createServer(async (request, response) => {
    const path = normalize(new URL(request.url, 'http://localhost').pathname);
    try {
      const content = path === '/trace.json' ? trace : await readFile(join(viewer, path));
      response.setHeader('Content-Type', types[extname(path)] ?? 'application/octet-stream');
      response.end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  return server;
}

// In the sandwich view names stand in the page, not on a canvas; its rows have three cells.
const rows = 'tr:visible:has(td:nth-child(3))';

/** Names of the slices listed, without their arguments, which speedscope appends. */
async function sliceNames(page) {
  const names = await page.locator(`${rows} td:last-child`).allInnerTexts();
  return names.map(name => name.trim().split(' {')[0]);
}

/** Steps through all threads; speedscope shows one at a time, "rank 0 (pid 0), compute (tid 0)". */
async function readThreads(page) {
  const title = page.getByText(/\(pid \d+.*tid \d+\)/).first();
  await title.waitFor({timeout: patience});
  await page.keyboard.press('3');
  const threads = [];
  for (;;) {
    await page.locator(rows).first().waitFor({timeout: patience});
    const shown = await title.innerText();
    const [, rank, thread, place, count] =
        /^(.*) \(pid \d+\), (.*) \(tid \d+\)(?: \((\d+)\/(\d+)\))?/.exec(shown) ?? [];
    if (rank === undefined) throw new Error(`a thread without a name: ${shown}`);
    threads.push({process: rank, thread, slices: await sliceNames(page)});
    if (place === count) return threads;
    await page.keyboard.press('n');
    await page.waitForFunction(
        before => !document.body.innerText.includes(before), shown, {timeout: patience});
  }
}

/** Everything the viewer has to say that is not about the graphics driver. */
function collectComplaints(page) {
  const complaints = [];
  page.on('console', message => {
    const text = message.text();
    if (message.type() !== 'log' && message.type() !== 'timeEnd' && !text.includes('GL Driver')) {
      complaints.push(text);
    }
  });
  page.on('pageerror', error => complaints.push(error.message));
  page.on('dialog', dialog => {
    complaints.push(dialog.message());
    dialog.dismiss();
  });
  return complaints;
}

async function look(trace, screenshot) {
  const server = await serve(trace);
  const profile = await mkdtemp(join(tmpdir(), 'viewer-'));
  const browser = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: browserFlags,
    chromiumSandbox: false,
    viewport: {width: 1400, height: 8_000},  // tall: the table holds only the rows in sight
  });
  try {
    const page = browser.pages()[0] ?? await browser.newPage();
    const complaints = collectComplaints(page);
    const home = `http://127.0.0.1:${server.address().port}`;
    const url = encodeURIComponent(`${home}/trace.json`);
    await page.goto(`${home}/index.html#profileURL=${url}`);
    const threads = await readThreads(page);
    if (screenshot) {
      await page.setViewportSize({width: 1400, height: 500});
      for (let i = 1; i < threads.length; ++i) await page.keyboard.press('p');
      await page.keyboard.press('1');
      await page.waitForTimeout(1000);  // the canvas is drawn some frames later
      await page.screenshot({path: screenshot});
    }
    return {threads, complaints};
  } finally {
    await browser.close();
    server.close();
    await rm(profile, {recursive: true, force: true});
  }
}

function missing(kind, expected, found) {
  const known = new Set(found);
  return expected.filter(name => !known.has(name)).map(name => `${kind} '${name}' is not shown`);
}

async function main() {
  let wanted;
  let trace;
  try {
    wanted = readArguments();
    trace = await readFile(wanted.trace);
  } catch (error) {
    console.error(`check.mjs: ${error.message}`);
    return 2;
  }
  const {threads, complaints} = await look(trace, wanted.screenshot);
  const faults = [
    ...missing('process', wanted.processes, threads.map(thread => thread.process)),
    ...missing('thread', wanted.threads, threads.map(thread => thread.thread)),
    ...missing('slice', wanted.slices, threads.flatMap(thread => thread.slices)),
    ...complaints.map(text => `the viewer says: ${text}`),
  ];
  for (const {process: rank, thread, slices} of threads) {
    console.log(`${rank} | ${thread} | ${slices.length} slices`);
  }
  for (const fault of faults) console.error(fault);
  return faults.length === 0 ? 0 : 1;
}

main().then(code => process.exit(code), error => {
  console.error(`check.mjs: ${error.message}`);
  process.exit(1);
});
