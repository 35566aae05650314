// What pages have with JavaScript only. Each page and each form works without it.
(function () {
  "use strict";
  var find = document.getElementById("find");

  // "/" goes to the search box; j and k go through rows, and Enter follows a row's link.
  document.addEventListener("keydown", function (e) {
    var at = document.activeElement;
    if (e.ctrlKey || e.metaKey || e.altKey || (at && /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName))) return;
    if (e.key === "/" && find) {
      e.preventDefault();
      find.focus();
      find.select();
    } else if (e.key === "j" || e.key === "k") {
      var links = Array.from(document.querySelectorAll("tbody tr a.row"));
      var next = links.indexOf(at) + (e.key === "j" ? 1 : -1);
      if (links[next]) links[next].focus();
    }
  });

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

  // The overview is read again every ten seconds while it is looked at, and its numbers are replaced.
  if (document.body.hasAttribute("data-live")) {
    setInterval(function () {
      if (document.hidden) return;
      fetch(location.href, { credentials: "same-origin" }).then(function (r) {
        return r.ok ? r.text() : Promise.reject(r.status);
      }).then(function (text) {
        var fresh = new DOMParser().parseFromString(text, "text/html");
        document.querySelectorAll("[data-part]").forEach(function (part) {
          var now = fresh.querySelector('[data-part="' + part.dataset.part + '"]');
          if (now && !part.contains(document.activeElement)) part.replaceWith(document.adoptNode(now));
        });
        document.body.classList.remove("stale");
      }).catch(function () { document.body.classList.add("stale"); });
    }, 10000);
  }

  // A job at work is read again every second, until it has ended.
  (function watch() {
    var part = document.querySelector("[data-every]");
    if (!part) return;
    setTimeout(function () {
      fetch(location.href, { credentials: "same-origin" }).then(function (r) {
        if (!r.ok) location.reload(); // it says what is wrong
        return r.text();
      }).then(function (text) {
        var now = new DOMParser().parseFromString(text, "text/html").querySelector('[data-part="job"]');
        if (!now) return;
        if (part.contains(document.activeElement) && now.hasAttribute("data-every")) { // leave the button to whoever is on it
          ["progress", "label"].forEach(function (of) { part.querySelector(of).replaceWith(document.adoptNode(now.querySelector(of))); });
        } else {
          part.replaceWith(document.adoptNode(now));
        }
      }).catch(function () {}).then(watch);
    }, Number(part.dataset.every));
  })();
})();
