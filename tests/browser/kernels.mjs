// Use the page of demos/kernels/ as a person does, by keyboard, and return what it showed.
//
//   arg: { reload?, withoutGpu?, picture? }
//
// `reload` loads the page again without a network before it is used, and `withoutGpu` without WebGPU.

import { isStored } from "./stored_files.mjs";

export default async ({ page, arg }) => {
  page.setDefaultTimeout(240_000);
  const isReady = () => page.locator("#reasons").getByText("Works offline: yes").waitFor();
  await isReady();
  if (arg.withoutGpu) {
    await page.addInitScript(() => Object.defineProperty(navigator, "gpu", { value: undefined }));
    await page.reload();
    await isReady();
  }
  if (arg.reload) {
    while (!(await page.evaluate(isStored))) await page.waitForTimeout(100);
    await page.context().setOffline(true);
    await page.reload();
    await isReady();
  }
  await page.locator("#measure").focus();
  await page.keyboard.press("Enter");
  await page.locator("#state").getByText(/^Measured/).waitFor();
  const steps = page.locator(".steps button");
  const bars = await page.locator(".steps .bar").evaluateAll((items) => items.map(({ value }) => value));
  const figures = await page.locator(".steps .figure").allTextContents();
  await steps.first().focus();
  await page.keyboard.press("Enter");
  const details = [];
  for (let step = 0; step < bars.length; step++) {
    details.push({
      name: await page.locator("#name").textContent(),
      result: await page.locator("#result").textContent(),
      traffic: await page.locator("#traffic dd").allTextContents(),
      schedule: await page.locator("#text").textContent(),
    });
    await page.keyboard.press("ArrowDown");
  }
  await page.getByRole("tab", { name: "Schedule" }).focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  const codes = [];
  for (const step of [0, bars.length - 1]) {
    await steps.nth(step).click();
    codes.push(await page.locator("#text").textContent());
  }
  if (arg.picture) {
    await page.evaluate(() => document.querySelector("#cpu").closest(".card").scrollIntoView());
    await page.waitForTimeout(1000); // the bars stop growing
    await page.screenshot({ path: arg.picture });
  }
  const texts = { cpu: await page.locator("#limit_wasm").textContent(), gpu: await page.locator("#limit_webgpu").textContent() };
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  return { bars, figures, details, codes, limits: texts, overflow };
};
