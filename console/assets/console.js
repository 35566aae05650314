// What pages have with JavaScript only. Each page and each form works without it.
(function () {
  "use strict";
  var find = document.getElementById("find"), help = document.getElementById("keys");

  // "/" goes to the search box; j, k and the arrows go through the links of rows, and Enter follows one; "?" shows that.
  document.addEventListener("keydown", function (e) {
    var at = document.activeElement;
    if (e.ctrlKey || e.metaKey || e.altKey || (at && /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName))) return;
    if (help && help.open && e.key !== "?") return;
    var links = Array.from(document.querySelectorAll("tbody tr a.row, .board h3 a")), i = links.indexOf(at), next;
    switch (e.key) {
      case "/":
        if (!find) return;
        e.preventDefault();
        find.focus();
        find.select();
        return;
      case "?":
        if (!help || !help.showModal) return;
        e.preventDefault();
        if (help.open) help.close(); else help.showModal();
        return;
      case "j": next = links[i + 1]; break;
      case "k": next = links[i - 1]; break;
      case "ArrowDown": if (i >= 0) next = links[i + 1]; break; // elsewhere the arrows scroll
      case "ArrowUp": if (i >= 0) next = links[i - 1]; break;
    }
    if (!next) return;
    e.preventDefault();
    next.focus();
  });
  document.querySelectorAll("[data-help]").forEach(function (button) {
    if (!help || !help.showModal) return;
    button.hidden = false;
    button.addEventListener("click", function () { help.showModal(); });
  });

  // A search that somebody began goes on by itself while it is looked at, until it ends or they stop it.
  var on = document.querySelector("a[data-further]"), stop = document.querySelector("a[data-stop]");
  function searchOn() {
    if (on && !document.hidden) location.replace(on.href);
  }
  if (stop) stop.hidden = false;
  ["click", "input"].forEach(function (what) { // whoever goes elsewhere or types is not called back
    document.addEventListener(what, function () { on = null; });
  });
  document.addEventListener("visibilitychange", searchOn);
  if (on) setTimeout(searchOn, 150); // what was found can be seen, and Stop be reached

  // A form is sent once.
  document.addEventListener("submit", function (e) {
    var form = e.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) e.preventDefault();
    form.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", function () {
    document.querySelectorAll("form[data-sent]").forEach(function (form) { delete form.dataset.sent; });
  });

  // A page with a part that changes is kept up to date by events. Where there are none, the page is read again.
  var live = document.body.dataset.live, source = null, timer = 0, over = false, late = null;
  if (!live) return;

  // show replaces the part. The focus stays on the link that it was on. A button or a field that somebody is on stays
  // until they leave it; the progress does not wait for that.
  function show(html) {
    var all = new DOMParser().parseFromString(html, "text/html"), now = all.querySelector("[data-part]");
    var part = document.querySelector("[data-part]"), at = document.activeElement, same = null;
    document.body.classList.remove("stale");
    all.querySelectorAll("[data-count]").forEach(function (is) { // the numbers beside the links of the navigation
      var was = document.querySelector('.top [data-count="' + is.dataset.count + '"]');
      if (was && was.innerHTML !== is.innerHTML) was.replaceWith(document.adoptNode(is));
    });
    if (!now || !part) return;
    late = null;
    if (part.contains(at)) {
      if (at.tagName === "A") same = Array.from(now.querySelectorAll("a")).find(function (a) { return a.getAttribute("href") === at.getAttribute("href"); });
      else if (at.form && now.querySelector("form")) {
        late = html;
        ["progress", "label[for=progress]"].forEach(function (of) {
          var was = part.querySelector(of), is = now.querySelector(of);
          if (was && is) was.replaceWith(document.adoptNode(is));
        });
        return;
      }
    }
    part.replaceWith(document.adoptNode(now));
    if (same) same.focus({ preventScroll: true });
  }
  document.addEventListener("focusout", function () {
    setTimeout(function () { if (late) show(late); });
  });

  function stale() { document.body.classList.add("stale"); }

  function read() {
    clearTimeout(timer);
    if (over || document.hidden) return;
    fetch(location.href, { credentials: "same-origin", headers: { "Once-Refresh": "1" } }).then(function (r) {
      if (r.status === 401) location.reload(); // it asks for a sign-in
      return r.ok ? r.text() : Promise.reject(r.status);
    }).then(function (text) {
      show(text);
      over = !/<body[^>]* data-live=/.test(text);
    }).catch(stale).then(function () {
      var part = document.querySelector("[data-part]");
      timer = setTimeout(read, Number(part && part.dataset.every) || 10000);
    });
  }

  function listen() {
    if (over || source || document.hidden) return;
    clearTimeout(timer);
    if (!window.EventSource) return read();
    source = new EventSource(live);
    source.addEventListener("part", function (e) { show(e.data); });
    source.addEventListener("end", function () { over = true; hush(); });
    source.onerror = function () {
      if (source.readyState !== EventSource.CLOSED) return stale(); // it connects again by itself
      hush();
      read();
    };
  }

  function hush() {
    if (source) source.close();
    source = null;
  }

  // A page that nobody sees needs no connection, of which a browser has few.
  document.addEventListener("visibilitychange", function () {
    if (document.hidden) hush(); else listen();
  });
  window.addEventListener("pagehide", hush);
  window.addEventListener("pageshow", function (e) { if (e.persisted) listen(); });
  listen();
})();
