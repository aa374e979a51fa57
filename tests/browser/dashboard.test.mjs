// The dashboard in a real Chromium: flows of an operator, accessibility of every page, screenshots for the docs.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { shop, until } from "./shop.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
// Written when LITEPOST_SCREENSHOTS names a folder: docs/images has them.
const PICTURES = process.env.LITEPOST_SCREENSHOTS;
const PAGES = {
  overview: "/", destination: "/destinations/0/shop.stock", events: "/events", event: "/events/0/8",
  dead: "/dead", "dead-letter": "/dead/0/1", leases: "/leases", audit: "/audit", config: "/config",
};

let place;
let browser;
before(async () => {
  place = await shop();
  browser = await chromium.launch({ executablePath: process.env.LITEPOST_CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
});
after(async () => {
  await browser?.close();
  await place?.stop();
});

async function opened(options, path) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const elsewhere = [];
  page.on("request", (request) => request.url().startsWith(place.base) || request.url().startsWith("data:") || elsewhere.push(request.url()));
  const errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(place.base + path);
  return { context, page, elsewhere, errors };
}

test("an operator edits a dead letter, sees the difference, and it is delivered", async () => {
  const { context, page, errors } = await opened({}, "/dead");
  await page.getByRole("link", { name: "1", exact: true }).click();
  await page.getByLabel("Payload").fill(JSON.stringify({ sql: "INSERT INTO stock VALUES (?, ?)", args: ["cups", 12] }, null, 2));
  await page.getByRole("button", { name: "Show the difference…" }).click();
  assert.match(await page.locator("pre.diff del").innerText(), /- +-1/);
  assert.match(await page.locator("pre.diff ins").innerText(), /\+ +12/);
  await inEveryDress(page, "edit");
  assert.equal(place.sql("stock.db", "SELECT count(*) FROM stock WHERE item = 'cups'"), "0");
  await page.getByLabel("Why").fill("the count was negative");
  await page.getByRole("button", { name: "Do it" }).click();
  await page.getByText("Done. It stands first below.").waitFor();
  assert.match(await page.locator("tbody tr").first().innerText(), /the count was negative/);
  await until("the edited event arrives", () => place.sql("stock.db", "SELECT n FROM stock WHERE item = 'cups'") === "12");
  assert.deepEqual(errors, []);
  await context.close();
});

test("before all that match are replayed it is shown which they are, and looking at it does nothing", async () => {
  const { context, page, errors } = await opened({}, "/dead");
  await page.getByRole("button", { name: "Replay all that match…" }).click();
  await page.getByRole("button", { name: "Do it" }).waitFor();
  assert.match(await page.locator("main").innerText(), /\d+ events?/);
  await inEveryDress(page, "bulk");
  assert.equal(place.sql("shop.db", "SELECT count(*) FROM litepost_dead WHERE replayed_at IS NOT NULL"), "1");
  assert.deepEqual(errors, []);
  await context.close();
});

test("without a script: all that match are shown first, then discarded", async () => {
  const { context, page } = await opened({ javaScriptEnabled: false }, "/dead");
  await page.getByLabel("Key").fill("spoons");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByRole("button", { name: "Discard all that match…" }).click();
  await page.getByText("1 event", { exact: true }).waitFor();
  assert.equal(place.sql("shop.db", "SELECT count(*) FROM litepost_dead WHERE discarded_at IS NOT NULL"), "0");
  await page.getByRole("button", { name: "Do it" }).click();
  await page.getByText("Done.").waitFor();
  assert.equal(place.sql("shop.db", "SELECT key FROM litepost_dead WHERE discarded_at IS NOT NULL"), "spoons");
  await context.close();
});

test("a destination is paused by the keyboard alone, the overview tells it live, and it is resumed", async () => {
  const watching = await opened({}, "/");
  const { context, page } = await opened({}, "/destinations/0/shop.archive");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
  await page.getByRole("button", { name: "Pause…" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Do it" }).focus();
  await page.keyboard.press("Enter");
  await page.getByText("Done.").waitFor();
  const row = watching.page.locator('tr[data-destination="shop.archive"]');
  await row.getByText("paused", { exact: true }).waitFor();
  await page.goto(`${place.base}/destinations/0/shop.archive`);
  await page.getByRole("button", { name: "Resume all of it…" }).click();
  await page.getByRole("button", { name: "Do it" }).click();
  await row.getByText("delivering", { exact: true }).waitFor();
  await watching.context.close();
  await context.close();
});

test("the timeline tells what became of an event", async () => {
  const { context, page } = await opened({}, "/events/0/8");
  const row = page.getByRole("row", { name: /shop.stock/ });
  assert.match(await row.innerText(), /dead letter/);
  assert.match(await page.getByRole("row", { name: /shop.archive/ }).innerText(), /delivered by then; the receipt of events/);
  await context.close();
});

for (const colorScheme of ["light", "dark"]) {
  for (const [width, height] of [[1100, 760], [360, 740]]) {
    test(`every page is accessible, ${colorScheme}, ${width} wide`, async () => {
      const found = [];
      for (const [name, path] of Object.entries(PAGES)) {
        const { context, page, elsewhere, errors } = await opened({ colorScheme, viewport: { width, height } }, path);
        if (name === "overview") await page.locator("svg.rate").first().waitFor();
        found.push(...(await barriers(page, name)));
        if (elsewhere.length > 0) found.push(`${name} asked ${elsewhere}`);
        if (errors.length > 0) found.push(`${name}: ${errors}`);
        if (PICTURES && name === "overview") await traffic();
        if (PICTURES) await picture(page, name, colorScheme, width);
        await context.close();
      }
      assert.deepEqual(found, []);
    });
  }
}

/** What keeps somebody from using the page as it stands, and what does not fit on the screen. */
async function barriers(page, name) {
  // Through the debugger's door, since the page's own policy lets no foreign script in.
  const result = await page.evaluate(`${AXE}; axe.run(document, { resultTypes: ["violations"] })`);
  const found = result.violations.map((one) => `${name}: ${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`);
  const spill = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  if (spill > 0) found.push(`${name}: ${spill} pixels wider than the screen`);
  return found;
}

/** A page that only a form leads to: light and dark, wide and on a phone. */
async function inEveryDress(page, name) {
  const found = [];
  for (const colorScheme of ["light", "dark"]) {
    for (const [width, height] of [[1280, 720], [360, 740]]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height });
      found.push(...(await barriers(page, `${name}, ${colorScheme}, ${width}`)));
      if (PICTURES) await picture(page, name, colorScheme, width);
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 1280, height: 720 });
  assert.deepEqual(found, []);
}

/** Something for the overview to draw. */
async function traffic() {
  const visit = (n) =>
    place.litepost("enqueue", "--database", "shop.db", "--topic", "visits", "--key", `page-${n}`, "--type", "PageSeen", "--payload", `{"page": ${n}}`);
  for (const count of [2, 5, 9, 4, 7, 3]) {
    for (let n = 0; n < count; n += 1) visit(n);
    await new Promise((done) => setTimeout(done, 1000));
  }
}

/** On a phone, and of long lists, what the screen shows; elsewhere the whole page. */
async function picture(page, name, colorScheme, width) {
  const phone = width < 500;
  if (phone && colorScheme === "dark") return;
  mkdirSync(PICTURES, { recursive: true });
  const kind = `${colorScheme === "dark" ? "-dark" : ""}${phone ? "-phone" : ""}`;
  await page.screenshot({ path: join(PICTURES, `dashboard-${name}${kind}.png`), fullPage: !phone && name !== "events" });
}
