"""What tests of pages share."""

import base64
import json
import zlib


def wait(browser, script):
    """Until the script is true in the page."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 30).until(lambda d: d.execute_script(f"return {script}"))


def look_at_all(browser):
    """Until every plot of the page is drawn."""
    for tab in browser.find_elements("css selector", ".tab") or [None]:
        if tab is not None:
            tab.click()
            wait(browser, f"location.hash === {json.dumps(tab.get_property('hash'))}")
            wait(browser, "document.querySelector('.tab[aria-current]').hash === location.hash")
        for plot in browser.find_elements("css selector", ".plot"):
            browser.execute_script("arguments[0].scrollIntoView()", plot)
    wait(browser, "[...document.querySelectorAll('.plot')].every((p) => p.data !== undefined)")


def unpacked(text, name):
    """What a page holds packed."""
    begin = text.index(f'id="{name}">') + len(f'id="{name}">')
    return json.loads(zlib.decompress(base64.b64decode(text[begin : text.index("<", begin)])))
