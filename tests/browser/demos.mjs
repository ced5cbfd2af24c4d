// Use a page of the demos as a person does, and return what it showed.
//
//   arg: { demo, picture?, compare?, reload?, ...for the demo }
//
// `compare` clicks the button for ONNX Runtime Web. `reload` loads the page again without a network before it is used.

import { isStored } from "./stored_files.mjs";

/** @param {{ name: string, base64: string, type?: string }[]} files */
const buffers = (files) => files.map(({ name, base64, type = "" }) => ({ name, mimeType: type, buffer: Buffer.from(base64, "base64") }));

const DEMOS = {
  async file_type(page, { files, examples }) {
    await page.locator("#examples:enabled").waitFor();
    const results = page.locator("#results li");
    if (examples) {
      await page.getByRole("button", { name: "Try this page" }).focus();
      await page.keyboard.press("Enter");
      await results.nth(5).waitFor();
    } else {
      await page.setInputFiles("#files", buffers(files));
      await results.nth(files.length - 1).waitFor();
    }
    const answers = await results.evaluateAll((items) => items.map((item) => [item.dataset.type, item.querySelector(".bar")?.value ?? null]));
    return { answers: answers.reverse() };
  },

  async read_text(page, { text }) {
    const isDone = () => page.locator("#state").getByText(/^\d+ lines?$|^No text/).waitFor();
    await page.locator("#files:enabled").waitFor({ state: "attached" });
    await isDone();
    if (text) {
      const other = await page.context().newPage();
      await other.setContent(text);
      const picture = await other.screenshot();
      await other.close();
      await page.setInputFiles("#files", { name: "page.png", mimeType: "image/png", buffer: picture });
      await page.locator("#state").getByText(/^Looking|^Reading/).waitFor();
      await isDone();
    }
    return { answers: await page.locator("#lines button").evaluateAll((items) => items.map((item) => item.firstChild.textContent)) };
  },

  async semantic_search(page, { queries, file }) {
    await page.locator("#files:enabled").waitFor({ state: "attached" });
    if (file) {
      await page.setInputFiles("#files", buffers([file]));
      await page.getByText(`${file.name}: `).waitFor();
    }
    const answers = [];
    for (const query of queries) {
      await page.locator("#query").fill("");
      await page.locator("#results:empty").waitFor({ state: "attached" });
      await page.locator("#query").focus();
      await page.keyboard.insertText(query);
      const best = page.locator("#results li").first();
      await best.waitFor();
      answers.push([await best.locator("p").textContent(), Number(await best.locator(".score").textContent())]);
    }
    return { answers };
  },

  async voice_activity(page, { file, microphone }) {
    await page.locator("#microphone:enabled").waitFor();
    if (file) {
      await page.setInputFiles("#files", buffers([file]));
      await page.locator("#name").getByText(file.name).waitFor();
      await page.locator("#state").getByText("Speech in").waitFor();
    }
    const answers = await page.locator("#spans li").allTextContents();
    if (!microphone) return { answers };
    await page.getByRole("button", { name: "Use the microphone" }).focus();
    await page.keyboard.press("Enter");
    await page.locator("#state").getByText("per 32 ms").waitFor();
    const heard = await page.locator("#state").textContent();
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Use the microphone" }).waitFor();
    return { answers, heard };
  },
};

/** The facts that the page shows. */
async function readFacts(page) {
  const rows = await page.locator("#facts tbody tr").evaluateAll((items) => items.map((row) => [...row.cells].slice(1).map((cell) => cell.textContent)));
  return { webmlc: rows[0], onnxruntime: rows[1], status: await page.locator("#facts .status").textContent() };
}

export default async ({ page, arg }) => {
  const isReady = () => page.locator("#facts .reasons").getByText("Works offline").waitFor();
  await isReady();
  const offline = await page.locator("#facts .reasons").textContent();
  if (arg.reload) {
    await page.locator("#files:enabled").waitFor({ state: "attached" }); // the example of a page has been used then
    while (!(await page.evaluate(isStored))) await page.waitForTimeout(100);
    await page.context().setOffline(true);
    await page.reload();
    await isReady();
  }
  const shown = await DEMOS[arg.demo](page, arg);
  if (arg.compare) {
    await page.getByRole("button", { name: "Compare" }).click();
    await page.getByText(/Medians of|One run|error/i).waitFor();
  }
  if (arg.picture) {
    await page.evaluate(() => scrollTo(0, 0));
    await page.screenshot({ path: arg.picture });
  }
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  return { ...shown, ...(await readFacts(page)), offline, overflow };
};
