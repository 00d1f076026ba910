/* Elements without markup: text only ever enters as text. */

export function el(tag, settings = {}, ...children) {
  return filled(document.createElement(tag), settings, children);
}

const MATHML = 'http://www.w3.org/1998/Math/MathML';

export function mathEl(tag, settings = {}, ...children) {
  return filled(document.createElementNS(MATHML, tag), settings, children);
}

function filled(element, settings, children) {
  for (const [name, value] of Object.entries(settings)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
  element.append(...children.filter(child => ![null, undefined, false].includes(child)));
  return element;
}

/* Of an operator that touches its neighbours. */
export const TIGHT = { lspace: '0', rspace: '0' };

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}
