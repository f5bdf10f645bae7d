// What of a conversation is left out, at once; without script the form asks the server, which does the same.
export function begin() {
  const form = document.querySelector("form[data-switches]");
  const messages = document.getElementById("messages");
  if (!form || !messages) return;
  form.addEventListener("change", (event) => {
    if (event.target.name !== "hide") {
      form.requestSubmit();
      return;
    }
    messages.classList.toggle(`without-${event.target.value}`, event.target.checked);
    const words = new URLSearchParams(new FormData(form));
    for (const [word, value] of [...words]) if (!value) words.delete(word);
    history.replaceState(null, "", `?${words}${location.hash}`);
    // The next conversation is read in the same way.
    for (const link of document.querySelectorAll(".ways a")) {
      const address = new URL(link.href);
      address.searchParams.delete("hide");
      for (const hidden of words.getAll("hide")) address.searchParams.append("hide", hidden);
      link.href = address;
    }
  });
}
