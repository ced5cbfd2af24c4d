// Enter values in the page of a package as people do: draw, choose a picture, type numbers. Returns what the page shows then.

export default async ({ page, arg }) => {
  await page.getByRole("button", { name: "Run" }).waitFor();
  const pad = await page.locator("canvas.pad").boundingBox();
  await page.mouse.move(pad.x + 4, pad.y + 4);
  await page.mouse.down();
  await page.mouse.move(pad.x + 4, pad.y + pad.height - 4, { steps: 9 });
  await page.mouse.up();
  const picture = await page.evaluate(() => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 40, height: 24 });
    canvas.getContext("2d").fillRect(0, 0, 20, 24);
    return canvas.toDataURL().split(",")[1];
  });
  const file = { name: "half.png", mimeType: "image/png", buffer: Buffer.from(picture, "base64") };
  await page.locator("input[type=file]").nth(1).setInputFiles(file);
  await page.getByText("half.png").waitFor();
  await page.locator("textarea").fill("1, 2 x");
  await page.getByRole("button", { name: "Run" }).click();
  await page.locator(".error").waitFor();
  const error = await page.locator("#status").textContent();
  await page.locator("textarea").fill("1, 2 [5]");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText("Ran in").waitFor();
  const negative = page.locator("#outputs canvas").first();
  const pixel = (...place) => negative.evaluate((canvas, place) => [...canvas.getContext("2d").getImageData(...place, 1, 1).data], place);
  const result = {
    error,
    drawn: await pixel(0, 8),
    empty: await pixel(12, 8),
    sizes: await page.locator("#outputs canvas").evaluateAll((all) => all.map(({ width, height }) => [width, height])),
    symbols: await page.locator("#symbols input").evaluateAll((all) => all.map(({ name, value }) => [name, value])),
    table: await page.locator("#outputs td").allTextContents(),
    bars: await page.locator(".bars li").allTextContents(),
    overflow: await page.evaluate(() => document.documentElement.scrollWidth - innerWidth),
  };
  if (arg.picture) await page.screenshot({ path: arg.picture, fullPage: true });
  return result;
};
