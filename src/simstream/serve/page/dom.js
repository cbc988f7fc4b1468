// Creating elements. Contents only ever become text: nothing sent by a service is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** The element with an id. */
export const byId = (id) => document.getElementById(id);

/** A new element; strings among the children become text. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** A new SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** What people see of an item: its picture, its text, or at least its id. */
export function contentOf(item) {
  const shown = [];
  if (item.image?.startsWith("data:image/")) {
    const picture = element("img", { src: item.image, alt: "" });
    picture.addEventListener("load", () => {
      // A tiny picture keeps its sharp pixels; a photograph is smoothed.
      picture.classList.toggle("coarse", picture.naturalWidth <= 64);
    });
    shown.push(picture);
  }
  // The words beside a picture name it too, so its `alt` is empty.
  const [kind, words] = item.text ? ["text", item.text] : ["id", item.id];
  shown.push(element("span", { className: kind }, words));
  return shown;
}

/** Show an item in an existing element. */
export function showItem(place, item) {
  place.dataset.id = item.id;
  place.replaceChildren(...contentOf(item));
}

/** 0.834 as "83 %". */
export const percent = (share) => `${Math.round(100 * share)}\u202f%`;

/** A number in readable form. */
export function number(value, digits = 3) {
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, wholeDigits(value)) });
}

const wholeDigits = (value) => Math.max(1, Math.floor(Math.log10(Math.abs(value) || 1)) + 1);
