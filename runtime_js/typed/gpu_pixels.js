// Read the pixels of a moving picture on the GPU: they are copied to a texture, and from there to a buffer, and no CPU sees them.
//
//   in:  a VideoFrame, ImageBitmap, canvas or video element, and the device of the model
//   out: a tensor uint8 [height, width, 4] on the GPU, which is RGBA

import { kindOf } from "../kinds.js";

/** @import { GpuInput } from "../webmlc.js" */
/** @typedef {{ texture: GPUTexture, free: GPUBuffer[] }} Size */

const TILE = 8; // the sides of a workgroup, in pixels
const SHADER =
  "@group(0) @binding(0) var picture: texture_2d<f32>;" +
  "@group(0) @binding(1) var<storage, read_write> pixels: array<u32>;" +
  `@compute @workgroup_size(${TILE}, ${TILE})` +
  "fn pack(@builtin(global_invocation_id) id: vec3u) {" +
  "let size = textureDimensions(picture);" +
  "if (id.x < size.x && id.y < size.y) { pixels[id.y * size.x + id.x] = pack4x8unorm(textureLoad(picture, id.xy, 0)); } }";

/** Pictures that may be on the GPU already. An image element is not: the CPU turns it as its file says. */
const GPU_PICTURES = ["VideoFrame", "ImageBitmap", "OffscreenCanvas", "HTMLCanvasElement", "HTMLVideoElement"];

export class GpuPictures {
  #pipeline;
  /** @type {Map<string, Size>} */
  #sizes = new Map();

  /** @param {GPUDevice} device */
  constructor(device) {
    this.device = device;
    const module = device.createShaderModule({ code: SHADER });
    this.#pipeline = device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "pack" } });
  }

  /**
   * Copy a picture to a buffer, which `release` takes back. Null if the browser does not copy it.
   * @param {any} picture
   * @param {number} width
   * @param {number} height
   * @returns {GpuInput | null}
   */
  read(picture, width, height) {
    const { device } = this;
    const { maxTextureDimension2D } = device.limits;
    if (!GPU_PICTURES.includes(kindOf(picture)) || !width || !height || Math.max(width, height) > maxTextureDimension2D) return null;
    const size = this.#size(width, height);
    try {
      device.queue.copyExternalImageToTexture({ source: picture }, { texture: size.texture }, [width, height]);
    } catch {
      return null; // the page may not read it, or it is closed: reading on the CPU says why
    }
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC;
    const data = size.free.pop() ?? device.createBuffer({ label: "pixels", size: 4 * width * height, usage });
    const entries = [
      { binding: 0, resource: size.texture.createView() },
      { binding: 1, resource: { buffer: data } },
    ];
    const group = device.createBindGroup({ layout: this.#pipeline.getBindGroupLayout(0), entries });
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.#pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(Math.ceil(width / TILE), Math.ceil(height / TILE));
    pass.end();
    device.queue.submit([encoder.finish()]);
    return { dtype: "uint8", shape: [height, width, 4], data };
  }

  /** Take a buffer back, after the run that reads it. @param {GpuInput} pixels */
  release({ shape: [height, width], data }) {
    const size = this.#sizes.get(`${width} ${height}`);
    if (size) size.free.push(data);
    else data.destroy();
  }

  /** The texture and the buffers for pictures of this size. Textures and buffers of another size are freed. @param {number} width @param {number} height */
  #size(width, height) {
    const key = `${width} ${height}`;
    const entry = this.#sizes.get(key);
    if (entry) return entry;
    for (const { texture, free } of this.#sizes.values()) {
      texture.destroy();
      for (const buffer of free) buffer.destroy();
    }
    const usage = GPUTextureUsage.TEXTURE_BINDING | GPUTextureUsage.COPY_DST | GPUTextureUsage.RENDER_ATTACHMENT;
    /** @type {Size} */
    const size = { texture: this.device.createTexture({ size: [width, height], format: "rgba8unorm", usage }), free: [] };
    this.#sizes = new Map([[key, size]]);
    return size;
  }
}
