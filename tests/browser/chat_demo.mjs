// Ask the language model of the chat demo, and ask it again without a network. Returns both answers.

/** Whether the service worker has all files that the page has loaded. This function runs in the page. */
async function isStored() {
  const urls = performance.getEntriesByType("resource").map(({ name }) => name);
  const copies = await Promise.all([location.href, ...urls].map((url) => caches.match(url, { ignoreSearch: true })));
  return copies.every(Boolean);
}

export default async ({ page, arg }) => {
  const ask = async () => {
    await page.locator("#question:enabled").waitFor();
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Temperature").fill("0");
    await page.getByRole("button", { name: "Done" }).click();
    await page.getByLabel("Message").fill(arg.question);
    await page.keyboard.press("Enter");
    await page.locator("#speed").getByText("tokens/s").waitFor();
    await page.getByRole("button", { name: "Send" }).waitFor();
    return page.locator("article.assistant p").innerText();
  };
  const online = await ask();
  while (!(await page.evaluate(isStored))) await page.waitForTimeout(100);
  await page.context().setOffline(true);
  await page.reload();
  const offline = await ask();
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  return { online, offline, overflow };
};
