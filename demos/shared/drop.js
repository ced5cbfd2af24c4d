// Accept files that are dropped anywhere on the page, pasted, or chosen with an input.

/**
 * @param {HTMLElement} area  shows that files can be dropped
 * @param {HTMLInputElement} input
 * @param {(files: File[]) => void} onFiles
 */
export function acceptFiles(area, input, onFiles) {
  const accept = (/** @type {FileList | undefined} */ files) => files?.length && !input.disabled && onFiles([...files]);
  addEventListener("dragover", (event) => {
    event.preventDefault();
    area.classList.add("over");
  });
  addEventListener("dragleave", () => area.classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    area.classList.remove("over");
    accept(event.dataTransfer?.files);
  });
  addEventListener("paste", (event) => accept(event.clipboardData?.files));
  input.addEventListener("change", () => {
    accept(input.files ?? undefined);
    input.value = ""; // choosing the same file again is a change, too
  });
}
