// Open the chat demo from the gallery, ask its language model, and ask it again without a network. Returns both answers.

import { isStored } from "./stored_files.mjs";

export default async ({ page, arg }) => {
  const ask = async () => {
    await page.locator("#send:enabled").waitFor();
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Temperature").fill("0");
    await page.getByRole("button", { name: "Done" }).click();
    await page.getByLabel("Message").fill(arg.question);
    await page.keyboard.press("Enter");
    await page.locator("#speed").getByText("tokens/s").waitFor();
    await page.getByRole("button", { name: "Send" }).waitFor();
    return page.locator("article.assistant p").innerText();
  };
  await page.waitForFunction(() => navigator.serviceWorker.controller); // it has control of the chat, too, at first
  await page.getByRole("link", { name: "Chat" }).click();
  const online = await ask();
  while (!(await page.evaluate(isStored))) await page.waitForTimeout(100);
  await page.context().setOffline(true);
  await page.reload();
  const offline = await ask();
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  return { online, offline, overflow };
};
