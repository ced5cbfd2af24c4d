// Draw a notice with text in several sizes, colours and angles.

export async function drawExample() {
  const canvas = new OffscreenCanvas(900, 560);
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const write = (/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ y, /** @type {string} */ font, /** @type {string} */ colour) => {
    context.font = font;
    context.fillStyle = colour;
    context.fillText(text, x, y);
  };
  context.fillStyle = "#1f5d57";
  context.fillRect(0, 0, 900, 150);
  context.fillStyle = "#f6f1e4";
  context.fillRect(0, 150, 900, 410);
  write("CITY LIBRARY", 60, 100, "bold 72px sans-serif", "#f6f1e4");
  write("Open Tuesday to Saturday", 60, 235, "40px serif", "#22302e");
  write("from 9:30 am to 6 pm", 60, 295, "40px serif", "#22302e");
  write("Reading room: second floor", 60, 400, "30px sans-serif", "#22302e");
  write("Telephone 030 555 0142", 60, 450, "30px sans-serif", "#22302e");
  write("Free entry. No dogs, please.", 60, 510, "italic 26px serif", "#6a5a3a");
  context.translate(620, 420);
  context.rotate(-0.2);
  context.fillStyle = "#c8452f";
  context.fillRect(-60, -62, 320, 96);
  write("New books!", -35, 5, "bold 44px sans-serif", "#ffffff");
  return createImageBitmap(canvas);
}
