// Take the pictures of the gallery: each page after somebody used it, while `make demos` serves it.
//
//   make demos                          prints an address
//   node demos/pictures.mjs ADDRESS     writes docs/gallery/*.png
//
// The picture of the chat comes from demos/chat/pictures.mjs.

import { copyFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { startBrowser } from "../tests/browser/chromium.mjs";
import useDemo from "../tests/browser/demos.mjs";
import drawDigits from "../tests/browser/draw_digits.mjs";
import measureKernels from "../tests/browser/kernels.mjs";

const DOCS = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../docs");
const VIEWPORT = { width: 840, height: 560 };
const LIMIT_MS = 240_000;
const USES = {
  file_type: { examples: true },
  read_text: {},
  semantic_search: { queries: ["my tablet is dead"] },
  voice_activity: {},
};

const browser = await startBrowser();
try {
  const open = async (demo) => {
    const page = await (await browser.newContext({ viewport: VIEWPORT })).newPage();
    page.setDefaultTimeout(LIMIT_MS);
    await page.goto(new URL(`${demo}/`, process.argv[2]).href);
    return page;
  };
  const pictureOf = (demo) => path.join(DOCS, "gallery", `${demo}.png`);
  for (const [demo, use] of Object.entries(USES)) {
    const page = await open(demo);
    await useDemo({ page, arg: { demo, ...use, picture: pictureOf(demo) } });
    await page.context().close();
  }
  await measureKernels({ page: await open("kernels"), arg: { picture: pictureOf("kernels") } });
  const page = await open("digits");
  await drawDigits({ page, arg: { device: "auto", by: "mouse", digits: [3] } });
  await page.screenshot({ path: pictureOf("digits") });
  await copyFile(path.join(DOCS, "chat.png"), pictureOf("chat"));
} finally {
  await browser.close();
}
