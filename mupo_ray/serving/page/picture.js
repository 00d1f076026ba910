/* The image that is asked about, as a data URL that the server can read. */

const SENT_AS_THEY_ARE = ['image/png', 'image/jpeg', 'image/webp', 'image/gif'];
const MAX_BYTES = 4 * 2 ** 20;
const MAX_SIDE = 2048;

/* {url, width, note}; a large one, or one of another kind, is drawn anew, within the limits that the
   server names. */
export async function readPicture(file, limits) {
  const name = file.name || 'What was pasted';
  const url = await dataUrl(file);
  const image = new Image();
  image.src = url;
  try {
    await image.decode();
  } catch {
    throw new Error(`${name} is not an image that this browser can read; PNG and JPEG always are.`);
  }
  const { naturalWidth: width, naturalHeight: height } = image;
  const maxBytes = Math.min(MAX_BYTES, limits.max_image_bytes ?? Infinity);
  const fits = Math.sqrt((limits.max_image_pixels ?? Infinity) / (width * height));
  if (SENT_AS_THEY_ARE.includes(file.type) && file.size <= maxBytes && fits >= 1) {
    return { url, width, note: '' };
  }
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height), fits);
  // Rounded down, for the limit; but a product such as 2048 may come out a little less.
  const scaled = side => Math.max(1, Math.floor(side * scale + 1e-6));
  const canvas = document.createElement('canvas');
  canvas.width = scaled(width);
  canvas.height = scaled(height);
  const pen = canvas.getContext('2d');
  pen.fillStyle = '#fff';
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return {
    url: canvas.toDataURL('image/jpeg', 0.92),
    width: canvas.width,
    note: `Sent as JPEG, ${canvas.width} x ${canvas.height} pixels.`,
  };
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

/* Calls `take` with an image that is chosen, dropped anywhere on the page, or pasted. */
export function listenForPictures(input, zone, take) {
  const first = files => [...(files ?? [])].find(file => file.type.startsWith('image/'));
  input.addEventListener('change', () => {
    if (input.files[0]) take(input.files[0]);
    input.value = '';
  });
  document.addEventListener('paste', event => {
    const file = first(event.clipboardData?.files);
    if (!file) return;
    event.preventDefault();
    take(file);
  });
  const isOver = event => event.dataTransfer?.types.includes('Files');
  document.addEventListener('dragover', event => {
    if (!isOver(event)) return;
    event.preventDefault();
    zone.classList.add('over');
  });
  for (const name of ['dragleave', 'dragend']) {
    document.addEventListener(name, event => {
      if (!event.relatedTarget) zone.classList.remove('over');
    });
  }
  document.addEventListener('drop', event => {
    if (!isOver(event)) return;
    event.preventDefault();
    zone.classList.remove('over');
    const file = first(event.dataTransfer.files) ?? event.dataTransfer.files[0];
    if (file) take(file);
  });
}
